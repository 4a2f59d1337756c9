// What the conformance table cannot ask: ownership, errors, loops, streams, retries, orders. The argument is an empty directory.

#include <kingtide.hpp>

#include <atomic>
#include <iostream>
#include <limits>
#include <sstream>
#include <thread>

#define CHECK(condition)                                                                     \
    do {                                                                                     \
        if (!(condition)) {                                                                  \
            std::cerr << __FILE__ << ":" << __LINE__ << ": failed: " << #condition << "\n"; \
            std::exit(1);                                                                    \
        }                                                                                    \
    } while (0)

namespace {

using namespace kingtide;
using std::string;
using std::string_view;

string directory;

string below(const string &name) { return directory + "/" + name; }

Db open_new(const string &name) {
    Options options;
    options.set("error_if_exists", "true").set("memtable_size", "64K");
    return Db::open(below(name), options).value();
}

void results() {
    auto refused = Db::open(below("nowhere"), Options().set("create_if_missing", "false"));
    CHECK(!refused && refused.status() == Status::not_found);
    CHECK(refused.error().message().find("nowhere") != string::npos);
    CHECK(!refused.error().is_retryable() && !refused.error().is_transient_conflict());
    CHECK(name(refused.status()) == "not-found");
    auto written = open_new("results").default_family().value().put("k", "v");
    written.value();
    const auto read = open_new("read").default_family().value().put("k", "v");
    read.value();
    const Result<int> number(7);
    CHECK(number.value() == 7);
    // The first refused option is told, and nothing is opened.
    Options wrong;
    wrong.set("no_such_option", "1").set("block_size", "1");
    CHECK(Db::open(below("wrong"), wrong).status() == Status::invalid_argument);
    CHECK(wrong.status().error().message().find("no_such_option") != string::npos);
#if KINGTIDE_EXCEPTIONS
    bool thrown = false;
    try {
        (void)std::move(refused).value();
    } catch (const Exception &e) {
        Exception copy = e;  // exceptions are copied when they are rethrown from other threads
        thrown = copy.status() == Status::not_found && string(copy.what()) == e.error().message();
    }
    CHECK(thrown);
#endif
    CHECK(Error("mine").message() == "mine" && Error("mine").status() == Status::other && Error("").path().empty());
    CHECK(!Error("mine").offset());
}

void values() {
    Db db = open_new("values");
    Family family = db.default_family().value();
    string large(100000, 'x');
    CHECK(family.put("large", large).ok() && family.put("small", "s").ok() && family.put("empty", "").ok());
    CHECK(db.flush().ok());
    auto value = family.get("large").value();
    CHECK(value && *value == large);
    // A pinned value stays what it was, whatever happens to the key and the database.
    CHECK(family.put("large", "other").ok() && db.flush().ok() && family.compact().ok());
    CHECK(*value == large && value->string() == large);
    Value moved = std::move(*value);
    CHECK(moved.size() == large.size() && moved.data()[0] == 'x');
    Value place;
    CHECK(family.get_into("small", place).value() && place == "s");
    CHECK(!family.get_into("absent", place).value() && place.view().empty() && !place.is_present());
    CHECK(family.get_into("empty", place).value() && place.is_present() && place.size() == 0);
    auto many = family.multi_get({"small", "absent", "empty"}).value();
    CHECK(many.size() == 3 && *many[0] == "s" && !many[1] && *many[2] == "");
    // string_views of nothing are empty keys and values.
    CHECK(family.put("nothing", string_view()).ok() && *family.get("nothing").value() == "");
    CHECK(family.get(string_view()).ok());
    CHECK(db.close().ok() && moved.size() == large.size());
    CHECK(family.put("a", "b").status() == Status::closed);
}

void loops() {
    Db db = open_new("loops");
    Family family = db.default_family().value();
    for (char c = 'a'; c <= 'e'; c++) CHECK(family.put(string(1, c), string(3, c)).ok());
    string keys, held;
    for (const Entry &entry : family.range("b", "e").value()) {
        keys += entry.key;
        held += entry.value;
    }
    CHECK(keys == "bcd" && held == "bbbcccddd");
    keys.clear();
    for (const Entry &entry : family.scan({}, false).value().throwing()) keys += entry.key;
    CHECK(keys == "edcba");
    auto range = family.scan().value().keys_only();
    size_t empty = 0;
    for (const Entry &entry : range) empty += entry.value.empty();
    CHECK(empty == 5 && range.status());
    for (const Entry &entry : family.prefix("zz").value()) CHECK(entry.key.empty());
    // A loop over a transaction that ends meanwhile stops with an error.
    Transaction txn = db.begin().value();
    auto ended = txn.scan(family).value();
    size_t seen = 0;
    for (const Entry &entry : ended) {
        if (seen++ == 0) CHECK(entry.key == "a" && txn.rollback().ok());
    }
    CHECK(seen >= 1 && seen < 5 && ended.status().status() == Status::finished);
    Iterator it = family.iterator().value();
    CHECK(it.seek("c") && it.key() == "c" && it.next() && *it.value() == "ddd" && it.prev() && it.key() == "c");
    CHECK(it.seek_for_prev("bb") && it.key() == "b" && it.expires_at_ms() == 0);
    CHECK(!it.seek("x") && it.status() && it.value().status() == Status::invalid_argument);
    // An iterator outlives the handles that it came from.
    Iterator alone = [&] {
        Family same = db.default_family().value();
        return same.iterator().value();
    }();
    CHECK(alone.seek_to_first() && alone.key() == "a");
}

void streams() {
    Db db = open_new("streams");
    Family family = db.default_family().value();
    string text;
    for (int i = 0; i < 50000; i++) text += std::to_string(i) + "\n";
    CHECK(family.put("numbers", text).ok() && db.flush().ok());
    CHECK(!family.reader("absent").value());
    Reader reader = *family.reader("numbers").value();
    CHECK(reader.size() == text.size());
    char piece[8];
    CHECK(reader.read(text.size() - 3, piece, 8).value() == 3 && reader.read(text.size() + 9, piece, 8).value() == 0);
    ValueStream in(*family.reader("numbers").value(), 1000);
    string line;
    for (int i = 0; i < 50000; i++) CHECK(std::getline(in, line) && line == std::to_string(i));
    CHECK(!std::getline(in, line) && in.eof() && !in.error());
    in.clear();
    in.seekg(-6, std::ios::end);
    CHECK(std::getline(in, line) && line == "49999");
    in.seekg(2);
    CHECK(std::getline(in, line) && line == "1" && in.tellg() == std::streampos(4));
    in.seekg(-2, std::ios::cur);
    CHECK(std::getline(in, line) && line == "1");
    CHECK(in.rdbuf()->pubseekoff(1, std::ios::end) == std::streampos(std::streamoff(-1)));
    for (auto from : {std::ios::beg, std::ios::cur, std::ios::end}) {
        for (auto far : {std::numeric_limits<std::streamoff>::max(), std::numeric_limits<std::streamoff>::min()}) {
            CHECK(in.rdbuf()->pubseekoff(far, from) == std::streampos(std::streamoff(-1)));
        }
    }

    ValueStream moved(std::move(in));
    CHECK(std::getline(moved, line) && line == "2");
    in = std::move(moved);
    CHECK(std::getline(in, line) && line == "3" && in.tellg() == std::streampos(8));
}

void copied_families() {
    Db db = open_new("copied");
    std::vector<Family> families(3, db.default_family().value());
    families[0].put("a", "1").value();
    Family copy = families[2];
    families.clear();
    CHECK(*copy.get("a").value() == "1");
}

void written_in_pieces() {
    Db db = open_new("pieces");
    Family family = db.default_family().value();
    ValueWriter writer = family.value_writer().value();
    string piece(300'000, 'p');
    for (int i = 0; i < 9; i++) writer.write(piece).value();
    std::istringstream tail("the tail");
    CHECK(writer.write_from(tail).value() == 8 && writer.size() == 2'700'008);
    CHECK(!family.get("film").value());
    StagedValue film = writer.finish().value();
    CHECK(film.size() == 2'700'008 && writer.size() == 0);
    CHECK(writer.write("more").status() == Status::finished && writer.finish().status() == Status::finished);

    // In a transaction that is rolled back, then in one that commits: a value is committed once.
    {
        Transaction txn = db.begin().value();
        txn.put_staged(family, "film", film).value();
        CHECK(txn.get(family, "film").value()->size() == film.size());
    }
    CHECK(!family.get("film").value());
    db.transact([&](Transaction &txn) -> Result<void> { return txn.put_staged(family, "film", film); }).value();
    CHECK(family.get("film").value()->string() == [&] {
        string whole;
        for (int i = 0; i < 9; i++) whole += piece;
        return whole + "the tail";
    }());
    CHECK(family.put_staged("again", film).status() == Status::invalid_argument);

    ValueWriter shorter = family.value_writer().value();
    shorter.write("short").value();
    StagedValue staged = shorter.finish().value();
    Batch batch;
    batch.put_staged(family, "short", staged, std::chrono::hours(1)).value();
    batch.put(family, "beside", "1").value();
    db.write(batch).value();
    CHECK(*family.get("short").value() == "short" && *family.get("beside").value() == "1");

    ValueWriter dropped = family.value_writer().value();
    dropped.write(piece).value();
    Family other = db.create_family("other").value();
    ValueWriter elsewhere = other.value_writer().value();
    StagedValue foreign = elsewhere.finish().value();
    CHECK(family.put_staged("key", foreign).status() == Status::invalid_argument);
    other.put_staged("key", foreign).value();
    CHECK(other.get("key").value()->size() == 0);
}

/// A clock that moves when a test moves it.
struct TestClock {
    using duration = std::chrono::seconds;
    using time_point = std::chrono::time_point<TestClock, duration>;
    static inline time_point time;
    static time_point now() { return time; }
};

void a_minute_of_retries() {
    Db db = open_new("a_minute_of_retries");
    Family family = db.default_family().value();
    TransactionOptions how;
    how.locking = true;
    how.lock_timeout = std::chrono::milliseconds(1);
    Transaction holder = db.begin(how).value();
    holder.put(family, "locked", "held").value();
    // Attempts that wait too long end after a minute; those that meet a conflict do not.
    unsigned attempts = 0;
    auto waits = [&](Transaction &txn) -> Result<void> {
        attempts++;
        TestClock::time += std::chrono::seconds(30);
        return txn.put(family, "locked", "lost");
    };
    CHECK((db.transact<decltype(waits) &, TestClock>(waits, how).status() == Status::lock_timeout));
    CHECK(attempts == 2);
    attempts = 0;
    auto meets_another = [&](Transaction &txn) -> Result<void> {
        TestClock::time += std::chrono::seconds(30);
        if (auto put = txn.put(family, "n", "lost"); !put) return put.error();
        return family.put("n", std::to_string(++attempts));
    };
    auto given_up = db.transact<decltype(meets_another) &, TestClock>(meets_another, Db::serializable(), 5);
    CHECK(given_up.status() == Status::conflict && attempts == 5);
}

void retries() {
    Db db = open_new("retries");
    Family family = db.default_family().value();
    std::atomic<unsigned> runs{0};
    auto add = [&] {
        for (int i = 0; i < 50; i++) {
            auto done = db.transact([&](Transaction &txn) -> Result<uint64_t> {
                runs++;
                auto held = txn.get(family, "n");
                if (!held) return held.error();
                uint64_t next = (*held ? std::stoull((*held)->string()) : 0) + 1;
                if (auto put = txn.put(family, "n", std::to_string(next)); !put) return put.error();
                return next;
            });
            CHECK(done && *done >= 1);
        }
    };
    std::thread one(add), two(add), three(add);
    one.join();
    two.join();
    three.join();
    CHECK(*family.get("n").value() == "150" && runs >= 150);
    // An error of the body's own rolls back, and is returned.
    auto refused = db.transact([&](Transaction &txn) -> Result<void> {
        if (auto put = txn.put(family, "n", "0"); !put) return put.error();
        return Error("no");
    });
    CHECK(!refused && refused.error().message() == "no" && *family.get("n").value() == "150");
    // Attempts are bounded: each meets a write that comes in between.
    unsigned attempts = 0;
    auto given_up = db.transact(
        [&](Transaction &txn) -> Result<void> {
            attempts++;
            if (auto put = txn.put(family, "n", "1"); !put) return put.error();
            return family.put("n", std::to_string(attempts));
        },
        Db::serializable(), 3);
    CHECK(given_up.status() == Status::conflict && attempts == 3 && *family.get("n").value() == "3");
#if KINGTIDE_EXCEPTIONS
    bool passed = false;
    try {
        (void)db.transact([&](Transaction &txn) -> Result<void> {
            txn.put(family, "n", "lost").value();
            throw 7;
        });
    } catch (int thrown) {
        passed = thrown == 7;
    }
    CHECK(passed && *family.get("n").value() == "3");
    // A prepared transaction is rolled back too. It would otherwise stay in doubt and keep its locks.
    passed = false;
    try {
        (void)db.transact([&](Transaction &txn) -> Result<void> {
            txn.put(family, "n", "lost").value();
            txn.prepare("thrown").value();
            throw 7;
        });
    } catch (int thrown) {
        passed = thrown == 7;
    }
    CHECK(passed && db.prepared().value().empty() && *family.get("n").value() == "3");
#endif
    TransactionOptions how;
    how.locking = true;
    how.lock_timeout = std::chrono::milliseconds(0);
    Transaction first = db.begin(how).value(), second = db.begin(how).value();
    CHECK(first.put(family, "n", "9").ok() && second.put(family, "n", "8").status() == Status::lock_held);
    CHECK(first.lock_range(family, Bound::included("a"), Bound::none()).ok() && first.size() == 1);
    CHECK(second.lock(family, "b").status() == Status::lock_held && first.commit().value() > 0);
}

void orders() {
    auto by_length = [](string_view a, string_view b) {
        if (a.size() != b.size()) return a.size() < b.size() ? -1 : 1;
        return a.compare(b);
    };
    auto options = [&] {
        Options options;
        options.add_order("by-length", by_length);
        return options;
    };
    {
        Db db = Db::open(below("orders"), options()).value();
        Family family = db.create_family("f", {}, "by-length").value();
        for (const char *key : {"bbb", "a", "cc", "aa"}) CHECK(family.put(key, "").ok());
        string keys;
        for (const Entry &entry : family.scan().value()) keys += string(entry.key) + " ";
        CHECK(keys == "a aa cc bbb " && family.order().value() == "by-length");
    }
    CHECK(Db::open(below("orders")).status() == Status::incompatible);
    CHECK(Db::open(below("orders"), options()).ok());
    CHECK(options().add_order("by-length", by_length).status().status() == Status::exists);
    CHECK(Options().order("nonsense").status().status() == Status::not_found);
    CHECK(Options().set("block_size", "8K").get("block_size").value() != Options().get("block_size").value());
    const Options chained = Options().set("block_size", "8K").order("reverse").set("no_such_option", "1");
    CHECK(chained.get("block_size").value() == Options().set("block_size", "8K").get("block_size").value());
    CHECK(chained.status().status() == Status::invalid_argument);
}

void the_rest() {
    Db db = open_new("rest");
    Family family = db.default_family().value();
    Batch batch;
    CHECK(batch.empty() && batch.put(family, "a", "1").ok() && batch.size() == 1);
    WriteOptions durable;
    durable.durability = Durability::power;
    uint64_t sequence = db.write(batch, durable).value();
    CHECK(sequence > 0 && db.latest_sequence() == sequence && db.sync().ok());
    Snapshot before = db.snapshot().value();
    CHECK(before.sequence() == sequence && family.put("a", "2", std::chrono::hours(1)).ok());
    TransactionOptions as_of;
    as_of.snapshot = &before;
    CHECK(*db.begin(as_of).value().get(family, "a").value() == "1");
    CHECK(db.checkpoint(below("copy")).ok() && db.wait_for_background().ok());
    Db copy = Db::open_read_only(below("copy")).value();
    CHECK(*copy.default_family().value().get("a").value() == "2");
    CHECK(copy.default_family().value().put("b", "1").status() == Status::read_only);
    CHECK(db.prometheus().value().find("kingtide") != string::npos && !version().empty());
    Db moved = std::move(db);
    CHECK(moved.close().ok());
    moved = std::move(copy);  // assigning frees what was there
    CHECK(moved.families().value() == std::vector<string>{"default"});
}

}  // namespace

int main(int argc, char **argv) {
    if (argc != 2) {
        std::cerr << "usage: api DIRECTORY\n";
        return 2;
    }
    directory = argv[1];
    results();
    values();
    loops();
    streams();
    copied_families();
    written_in_pieces();
    retries();
    a_minute_of_retries();
    orders();
    the_rest();
    std::cout << "ok\n";
    return 0;
}
