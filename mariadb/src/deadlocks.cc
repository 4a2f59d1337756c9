/* Part of the MariaDB storage engine for Kingtide. GPL-2.0: see mariadb/COPYING. */

/*
  The description of a deadlock is made when the engine finds it, on the victim's thread, which still has its locks. The other
  sessions are therefore still waiting in the statements that led to the deadlock, and the tables are open.
*/
#include "deadlocks.h"

#include <algorithm>
#include <mutex>

#include "inspect.h"
#include "lock_places.h"
#include "session.h"

namespace kingtide {
namespace {

std::mutex latest_mutex;
std::string latest;

std::string time_text(time_t at) {
  struct tm local;
  char text[32] = "";
  if (localtime_r(&at, &local)) strftime(text, sizeof text, "%Y-%m-%d %H:%M:%S", &local);
  return text;
}

std::string lock_text(const LockedKeys &keys, TableNames *names) {
  const LockPlace place = names->place_of(keys);
  const std::string database = place.database.empty() ? "" : place.database + "`.`";
  std::string text = place.table.empty() ? "unknown table" : "table `" + database + place.table + "`";
  if (!place.index.empty()) text += " index `" + place.index + "`";
  return text + " lock mode " + (keys.exclusive ? "X " : "S ") + (keys.range ? "range " : "row ") + place.keys + "\n";
}

/** The lines about one transaction. */
std::string transaction_text(uint64_t id, const std::vector<Session::Shown> &sessions, time_t now) {
  std::string text = "TRANSACTION " + std::to_string(id);
  const auto found = std::find_if(sessions.begin(), sessions.end(), [id](const Session::Shown &s) { return s.transaction == id; });
  if (found == sessions.end()) return text + ", of no connection\n";
  text += ", ACTIVE " + std::to_string(now > found->started ? now - found->started : 0) + " sec\nMariaDB thread id " +
          std::to_string(found->thread) + ", " + std::to_string(found->rows_changed) + " row(s) changed\n";
  return found->query.empty() ? text : text + found->query + "\n";
}

}  // namespace

void note_deadlock(void *, const kingtide_deadlock *deadlock) {
  const std::vector<DeadlockStep> steps = steps_of(deadlock);
  const std::vector<Session::Shown> sessions = Session::all_running();
  const time_t now = time(nullptr);
  TableNames names;
  std::string text = "------------------------\nLATEST DETECTED DEADLOCK\n------------------------\n" + time_text(now) + "\n";
  for (size_t i = 0; i < steps.size(); i++) {
    const std::string number = "(" + std::to_string(i + 1) + ")", next = "(" + std::to_string((i + 1) % steps.size() + 1) + ")";
    text += "*** " + number + " TRANSACTION:\n" + transaction_text(steps[i].waiter, sessions, now);
    text += "*** " + number + " WAITING FOR THIS LOCK TO BE GRANTED:\n" + lock_text(steps[i].wanted, &names);
    text += "*** " + next + " HOLDS THE LOCK:\n" + lock_text(steps[i].held, &names);
  }
  text += "*** WE ROLL BACK TRANSACTION (1)\n";
  std::lock_guard<std::mutex> guard(latest_mutex);
  latest = std::move(text);
}

std::string latest_deadlock() {
  std::lock_guard<std::mutex> guard(latest_mutex);
  return latest;
}

}  // namespace kingtide
