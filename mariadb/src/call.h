/* Part of the MariaDB storage engine for Kingtide. GPL-2.0: see mariadb/COPYING. */
#pragma once

#include <kingtide.h>

#include <string>

#include "engine.h"

/* For those few files that call the engine's C API. */
namespace kingtide {

/** Takes a call's error, and keeps its message for last_message. */
class Call {
 public:
  ~Call() { kingtide_error_free(error_); }
  kingtide_error **operator&() { return &error_; }

  Outcome done(kingtide_status status) {
    if (status == KINGTIDE_OK) return Outcome::Ok;
    message_ = kingtide_error_message(error_);
    return of(status);
  }

 private:
  friend const char *last_message();
  friend Outcome failed(Outcome outcome, const std::string &what);
  static Outcome of(kingtide_status status) {
    switch (status) {
      case KINGTIDE_NOT_FOUND:
        return Outcome::NotFound;
      case KINGTIDE_CONFLICT:
        return Outcome::Conflict;
      case KINGTIDE_LOCK_HELD:
        return Outcome::LockHeld;
      case KINGTIDE_DEADLOCK:
        return Outcome::Deadlock;
      case KINGTIDE_LOCK_TIMEOUT:
        return Outcome::LockTimeout;
      case KINGTIDE_CANCELLED:
        return Outcome::Interrupted;
      case KINGTIDE_EXPIRED:
      case KINGTIDE_ABORTED:
      case KINGTIDE_FINISHED:
        return Outcome::Ended;
      case KINGTIDE_BUSY:
        return Outcome::Busy;
      case KINGTIDE_NO_SPACE:
        return Outcome::NoSpace;
      case KINGTIDE_CORRUPTION:
        return Outcome::Corruption;
      case KINGTIDE_READ_ONLY:
      case KINGTIDE_POISONED:
        return Outcome::ReadOnly;
      default:
        return Outcome::Other;
    }
  }

  kingtide_error *error_ = nullptr;
  static thread_local std::string message_;
};

}  // namespace kingtide
