// Runs the conformance table through kingtide.hpp. Arguments: an empty directory, "plain" or "flushed", and the files of the table.
// `conformance/README.md` says what each line means. Exits with 1 when an answer differs.

#include "table.hpp"

#include <kingtide.hpp>

#include <map>

namespace {

using namespace kingtide;
using std::string;
using std::string_view;

Words none() { return {"none"}; }
Words ok() { return {"ok"}; }

template <class T>
Words failed(const Result<T> &result) {
    return {"error", string(name(result.status()))};
}

// The answer of an operation that has nothing to tell.
template <class T>
Words done(const Result<T> &result) {
    return result ? ok() : failed(result);
}

Words text(const Result<string> &result) { return result ? Words{"text", *result} : failed(result); }

Words names(const Result<std::vector<string>> &result) {
    if (!result) return failed(result);
    Words words{"names"};
    words.insert(words.end(), (*result).begin(), (*result).end());
    return words;
}

Words one(const Result<std::optional<Value>> &result) {
    if (!result) return failed(result);
    return *result ? Words{"value", (*result)->string()} : none();
}

string optional(const std::optional<Value> &value) { return value ? "=" + value->string() : "-"; }

std::optional<string_view> from_optional(const string &word) {
    return word[0] == '=' ? std::optional(string_view(word).substr(1)) : std::nullopt;
}

Words values(const Result<std::vector<std::optional<Value>>> &result) {
    if (!result) return failed(result);
    Words words{"values"};
    for (const auto &value : *result) words.push_back(optional(value));
    return words;
}

Bound bound(const string &word) {
    string_view key = string_view(word).substr(1);
    return word[0] == '[' ? Bound::included(key) : word[0] == '(' ? Bound::excluded(key) : Bound::none();
}

Words entries(Result<Range> range) {
    if (!range) return failed(range);
    Words words{"entries"};
    for (const Entry &entry : *range) {
        words.emplace_back(entry.key);
        words.emplace_back(entry.value);
    }
    return range->status() ? words : failed(range->status());
}

Words place(Result<Iterator> made, const string &how, string_view key) {
    if (!made) return failed(made);
    Iterator &it = *made;
    bool there = how == "first"  ? it.seek_to_first()
                 : how == "last" ? it.seek_to_last()
                 : how == "seek" ? it.seek(key)
                                 : it.seek_for_prev(key);
    if (!there) return it.status() ? none() : failed(it.status());
    auto value = it.value();
    return value ? Words{"entry", string(it.key()), string(*value)} : failed(value);
}

uint64_t number(const string &word) { return std::stoull(word); }

class World {
public:
    explicit World(string path) : path_(std::move(path)) {}

    void flush() {
        if (db_) (void)db_->flush();  // it may be closed
    }

    Words perform(const Words &a) {
        using Method = bool (World::*)(const Words &, Words &);
        for (Method method : {&World::manage, &World::snapshots, &World::write, &World::read, &World::transact}) {
            Words answer;
            if ((this->*method)(a, answer)) return answer;
        }
        broken("no operation " + a[0]);
    }

private:
    template <class Map>
    static auto *find(Map &map, const string &key) {
        auto found = map.find(key);
        return found == map.end() ? nullptr : &found->second;
    }

    template <class Map, class T>
    static Words bind(Map &map, const string &key, Result<T> made) {
        if (!made) return failed(made);
        map.insert_or_assign(key, std::move(*made));
        return ok();
    }

    Family &family(const string &key) {
        Family *found = find(families_, key);
        if (!found) broken("no family " + key);
        return *found;
    }

    // The options from an index on; the key order is kept apart.
    static Options options(const Words &a, size_t from, string &order) {
        Options options;
        for (size_t i = from; i < a.size(); i++) {
            size_t equals = a[i].find('=');
            string key = a[i].substr(0, equals), value = a[i].substr(equals + 1);
            if (key == "order") {
                order = value;
            } else {
                options.set(key, value);
            }
        }
        return options;
    }

    Words open(const Words &a) {
        transactions_.clear();
        snapshots_.clear();
        batches_.clear();
        families_.clear();
        db_.reset();
        string order;
        Options how = options(a, 1, order);
        if (!order.empty()) how.order(order);
        auto opened = Db::open(path_, how);
        if (!opened) return failed(opened);
        db_ = std::move(*opened);
        return bind(families_, "default", db_->default_family());
    }

    bool manage(const Words &a, Words &answer) {
        const string &verb = a[0];
        if (verb == "open") {
            answer = open(a);
        } else if (verb == "close") {
            answer = done(db_->close());
        } else if (verb == "flush") {
            answer = done(db_->flush());
        } else if (verb == "sync") {
            answer = done(db_->sync());
        } else if (verb == "compact") {
            answer = done(family("default").compact());
        } else if (verb == "create_family") {
            string order = "bytewise";
            Options how = options(a, 3, order);
            answer = bind(families_, a[1], db_->create_family(a[2], how, order));
        } else if (verb == "family") {
            answer = bind(families_, a[1], db_->family(a[2]));
        } else if (verb == "clone_family") {
            answer = bind(families_, a[1], db_->clone_family(a[2], a[3]));
        } else if (verb == "drop_family") {
            answer = done(db_->drop_family(a[1]));
        } else if (verb == "rename_family") {
            answer = done(db_->rename_family(a[1], a[2]));
        } else if (verb == "families") {
            answer = names(db_->families());
        } else if (verb == "family_name") {
            answer = text(family(a[1]).name());
        } else if (verb == "family_order") {
            answer = text(family(a[1]).order());
        } else if (verb == "family_option") {
            answer = text(family(a[1]).option(a[2]));
        } else if (verb == "set_option") {
            answer = done(db_->set_option(a[1], a[2]));
        } else if (verb == "set_family_option") {
            answer = done(family(a[1]).set_option(a[2], a[3]));
        } else {
            return false;
        }
        return true;
    }

    bool snapshots(const Words &a, Words &answer) {
        const string &verb = a[0];
        if (verb == "snapshot") {
            answer = bind(snapshots_, a[1], db_->snapshot());
        } else if (verb == "name_snapshot") {
            answer = bind(snapshots_, a[1], db_->create_named_snapshot(a[2]));
        } else if (verb == "named_snapshot") {
            answer = bind(snapshots_, a[1], db_->named_snapshot(a[2]));
        } else if (verb == "drop_named_snapshot") {
            answer = done(db_->drop_named_snapshot(a[1]));
        } else if (verb == "snapshot_names") {
            answer = names(db_->snapshot_names());
        } else if (verb == "free_snapshot") {
            snapshots_.erase(a[1]);
            answer = ok();
        } else {
            return false;
        }
        return true;
    }

    // A verb that a batch and a transaction have with the family as its first argument.
    template <class Target>
    static bool write_to(Target &target, const Words &a, const Family &f, Words &answer) {
        const string &verb = a[0];
        if (verb == "put") {
            answer = done(target.put(f, a[3], a[4]));
        } else if (verb == "put_ttl") {
            answer = done(target.put(f, a[3], a[4], std::chrono::milliseconds(number(a[5]))));
        } else if (verb == "put_until") {
            answer = done(target.put_until(f, a[3], a[4], number(a[5])));
        } else if (verb == "delete") {
            answer = done(target.remove(f, a[3]));
        } else if (verb == "single_delete") {
            answer = done(target.single_remove(f, a[3]));
        } else if (verb == "delete_range") {
            answer = done(target.remove_range(f, a[3], a[4]));
        } else if (verb == "delete_prefix") {
            answer = done(target.remove_prefix(f, a[3]));
        } else {
            return false;
        }
        return true;
    }

    static bool write_plainly(const Words &a, const Family &f, Words &answer) {
        const string &verb = a[0];
        if (verb == "put") {
            answer = done(f.put(a[3], a[4]));
        } else if (verb == "put_ttl") {
            answer = done(f.put(a[3], a[4], std::chrono::milliseconds(number(a[5]))));
        } else if (verb == "delete") {
            answer = done(f.remove(a[3]));
        } else if (verb == "single_delete") {
            answer = done(f.single_remove(a[3]));
        } else if (verb == "delete_range") {
            answer = done(f.remove_range(a[3], a[4]));
        } else if (verb == "delete_prefix") {
            answer = done(f.remove_prefix(a[3]));
        } else {
            return false;
        }
        return true;
    }

    bool write(const Words &a, Words &answer) {
        const string &verb = a[0];
        if (verb == "batch") {
            batches_.insert_or_assign(a[1], Batch());
            answer = ok();
        } else if (verb == "batch_clear") {
            batches_.at(a[1]).clear();
            answer = ok();
        } else if (verb == "batch_count") {
            answer = {"count", std::to_string(batches_.at(a[1]).size())};
        } else if (verb == "write") {
            answer = done(db_->write(batches_.at(a[1])));
        } else if (verb == "compare_and_swap") {
            auto swap = family(a[1]).compare_and_swap(a[2], from_optional(a[3]), from_optional(a[4]));
            answer = !swap ? failed(swap) : swap->swapped ? Words{"swapped"} : Words{"found", optional(swap->found)};
        } else if (verb == "put_repeated") {
            string value;
            for (uint64_t i = number(a[5]); i > 0; i--) value += a[4];
            return write({"put", a[1], a[2], a[3], value}, answer);
        } else if (a.size() < 4 || !find(families_, a[2])) {
            return false;
        } else if (Batch *batch = find(batches_, a[1])) {
            return write_to(*batch, a, family(a[2]), answer);
        } else if (Transaction *txn = find(transactions_, a[1])) {
            return write_to(*txn, a, family(a[2]), answer);
        } else {
            return write_plainly(a, family(a[2]), answer);
        }
        return true;
    }

    Words stream(const Words &a) {
        auto opened = family(a[2]).reader(a[3], find(snapshots_, a[1]));
        if (!opened) return failed(opened);
        if (!*opened) return none();
        Reader &reader = **opened;
        if (a[0] == "length") return {"count", std::to_string(reader.size())};
        string piece(number(a[5]), '\0');
        auto read = reader.read(number(a[4]), piece.data(), piece.size());
        if (!read) return failed(read);
        return {"value", piece.substr(0, *read)};
    }

    bool read(const Words &a, Words &answer) {
        const string &verb = a[0];
        Snapshot *snapshot = a.size() > 1 ? find(snapshots_, a[1]) : nullptr;
        Transaction *txn = a.size() > 1 ? find(transactions_, a[1]) : nullptr;
        auto get = [&] {
            return snapshot ? family(a[2]).get(a[3], *snapshot) : txn ? txn->get(family(a[2]), a[3]) : family(a[2]).get(a[3]);
        };
        ReadOptions how;
        how.snapshot = snapshot;
        auto scan = [&](bool forward) {
            return entries(txn ? txn->scan(family(a[2]), how, forward) : family(a[2]).scan(how, forward));
        };
        if (verb == "get") {
            answer = one(get());
        } else if (verb == "contains") {
            auto value = get();
            answer = !value ? failed(value) : *value ? Words{"true"} : Words{"false"};
        } else if (verb == "multi_get") {
            std::vector<string_view> keys(a.begin() + 3, a.end());
            answer = values(txn ? txn->multi_get(family(a[2]), keys) : family(a[2]).multi_get(keys));
        } else if (verb == "range") {
            how.lower = bound(a[4]);
            how.upper = bound(a[5]);
            answer = scan(a[3] == "forward");
        } else if (verb == "prefix") {
            how.prefix = a[4];
            answer = scan(a[3] == "forward");
        } else if (verb == "first" || verb == "last" || verb == "seek" || verb == "seek_for_prev") {
            auto it = txn ? txn->iterator(family(a[2]), how) : family(a[2]).iterator(how);
            answer = place(std::move(it), verb, a.size() > 3 ? a[3] : "");
        } else if (verb == "length" || verb == "read_at") {
            answer = stream(a);
        } else {
            return false;
        }
        return true;
    }

    Words begin(const Words &a) {
        static const char *const levels[] = {"read-uncommitted", "read-committed", "repeatable-read", "snapshot", "serializable"};
        TransactionOptions how;
        for (int i = 0; i < 5; i++) {
            if (a[2] == levels[i]) how.isolation = static_cast<Isolation>(i + 1);
        }
        for (const string &flag : a) {
            how.locking |= flag == "locking";
            how.read_only |= flag == "read_only";
            if (flag == "no_wait") how.lock_timeout = std::chrono::milliseconds(0);
        }
        return bind(transactions_, a[1], db_->begin(how));
    }

    bool transact(const Words &a, Words &answer) {
        const string &verb = a[0];
        if (verb == "begin") {
            answer = begin(a);
        } else if (verb == "free_transaction") {
            transactions_.erase(a[1]);
            answer = ok();
        } else if (verb == "commit_prepared") {
            answer = done(db_->commit_prepared(a[1]));
        } else if (verb == "rollback_prepared") {
            answer = done(db_->rollback_prepared(a[1]));
        } else if (verb == "prepared") {
            answer = names(db_->prepared());
        } else if (Transaction *txn = a.size() > 1 ? find(transactions_, a[1]) : nullptr) {
            return verb_of(*txn, a, answer);
        } else {
            return false;
        }
        return true;
    }

    bool verb_of(Transaction &txn, const Words &a, Words &answer) {
        const string &verb = a[0];
        if (verb == "commit") {
            answer = done(txn.commit());
        } else if (verb == "rollback") {
            answer = done(txn.rollback());
        } else if (verb == "reset") {
            answer = done(txn.reset());
        } else if (verb == "savepoint") {
            answer = done(txn.set_savepoint(a[2]));
        } else if (verb == "rollback_to") {
            answer = done(txn.rollback_to_savepoint(a[2]));
        } else if (verb == "release") {
            answer = done(txn.release_savepoint(a[2]));
        } else if (verb == "refresh") {
            answer = done(txn.refresh_snapshot());
        } else if (verb == "prepare") {
            answer = done(txn.prepare(a[2]));
        } else if (verb == "get_for_update") {
            answer = one(txn.get_for_update(family(a[2]), a[3]));
        } else if (verb == "get_for_share") {
            answer = one(txn.get_for_share(family(a[2]), a[3]));
        } else if (verb == "lock") {
            answer = done(txn.lock(family(a[2]), a[3], a[4] == "shared" ? LockMode::shared : LockMode::exclusive));
        } else {
            return false;
        }
        return true;
    }

    string path_;
    std::optional<Db> db_;
    std::map<string, Family> families_;
    std::map<string, Batch> batches_;
    std::map<string, Snapshot> snapshots_;
    std::map<string, Transaction> transactions_;
};

// The first step of a case that is answered otherwise.
bool holds(const Case &a_case, const string &file, const string &directory, bool flushed) {
    World world(directory);
    for (const Step &step : a_case.steps) {
        if (flushed) world.flush();
        Words answer = world.perform(step.operation);
        if (answer != step.answer) {
            std::cerr << file << ":" << step.line << " (" << a_case.name << (flushed ? ", flushed" : "") << "): "
                      << show(step.operation) << " => " << show(step.answer) << ", but it is " << show(answer) << "\n";
            return false;
        }
    }
    return true;
}

}  // namespace

int main(int argc, char **argv) {
    if (argc < 4) {
        std::cerr << "usage: conformance DIRECTORY plain|flushed FILE...\n";
        return 2;
    }
    size_t cases = 0, steps = 0, failures = 0;
    for (int i = 3; i < argc; i++) {
        for (const Case &a_case : read_table(argv[i])) {
            string directory = string(argv[1]) + "/case-" + std::to_string(cases++);
            steps += a_case.steps.size();
            failures += !holds(a_case, argv[i], directory, string_view(argv[2]) == "flushed");
        }
    }
    std::cout << cases << " cases, " << steps << " steps, " << failures << " failures\n";
    return failures ? 1 : 0;
}
