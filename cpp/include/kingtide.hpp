// SPDX-License-Identifier: MIT OR Apache-2.0

/// Kingtide for C++17: owning types over the C API of `kingtide.h`.
///
/// A call that can fail returns a `Result`, which holds a value or an `Error`. Only `Result::value` and `Range::throwing` throw a
/// `kingtide::Exception`; in programs compiled without exceptions they abort. Keys and values are passed as `std::string_view`. Names and
/// paths are passed as `std::string`, and end at their first NUL byte, as those of the standard library's files do.
/// Values are pinned, not copied: see `Value`, `Iterator` and `Reader`.
///
/// Every type owns one handle and frees it; all are movable, and a `Family` can be copied. Those that the C API shares between threads
/// may be shared here.
/// A moved-from object may only be destroyed or assigned to. `native()` returns the C handle, for functions without a method here.

#ifndef KINGTIDE_HPP
#define KINGTIDE_HPP

#include <kingtide.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <istream>
#include <iterator>
#include <memory>
#include <optional>
#include <ostream>
#include <random>
#include <streambuf>
#include <string>
#include <string_view>
#include <thread>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#if defined(__cpp_exceptions) || defined(_CPPUNWIND)
#define KINGTIDE_EXCEPTIONS 1
#include <stdexcept>
#else
#define KINGTIDE_EXCEPTIONS 0
#endif

namespace kingtide {

/// The kind of an error. The numbers are those of `kingtide_status`.
enum class Status : int32_t {
    ok = KINGTIDE_OK,
    io = KINGTIDE_IO,
    no_space = KINGTIDE_NO_SPACE,
    corruption = KINGTIDE_CORRUPTION,
    invalid_argument = KINGTIDE_INVALID_ARGUMENT,
    not_found = KINGTIDE_NOT_FOUND,
    exists = KINGTIDE_EXISTS,
    busy = KINGTIDE_BUSY,
    locked = KINGTIDE_LOCKED,
    newer_format = KINGTIDE_NEWER_FORMAT,
    poisoned = KINGTIDE_POISONED,
    closed = KINGTIDE_CLOSED,
    cancelled = KINGTIDE_CANCELLED,
    incompatible = KINGTIDE_INCOMPATIBLE,
    conflict = KINGTIDE_CONFLICT,
    deadlock = KINGTIDE_DEADLOCK,
    lock_timeout = KINGTIDE_LOCK_TIMEOUT,
    expired = KINGTIDE_EXPIRED,
    aborted = KINGTIDE_ABORTED,
    too_old = KINGTIDE_TOO_OLD,
    finished = KINGTIDE_FINISHED,
    read_only = KINGTIDE_READ_ONLY,
    lock_held = KINGTIDE_LOCK_HELD,
    panic = KINGTIDE_PANIC,
    other = KINGTIDE_OTHER,
};

/// The name of a status, such as "lock-timeout".
inline std::string_view name(Status status) { return kingtide_status_name(static_cast<int32_t>(status)); }

/// The library's version.
inline std::string_view version() { return kingtide_version(); }

namespace detail {

/// Frees a handle.
template <auto Free>
struct Deleter {
    template <class T>
    void operator()(T *handle) const noexcept {
        Free(handle);
    }
};

template <class T, auto Free>
using Owned = std::unique_ptr<T, Deleter<Free>>;

inline const void *data(std::string_view bytes) { return bytes.data(); }

inline std::string_view view(const void *data, size_t len) {
    return data ? std::string_view(static_cast<const char *>(data), len) : std::string_view();
}

}  // namespace detail

/// An error: the kind, on which the program can decide, and the message for people.
class Error {
public:
    /// An error of the library; takes ownership of the handle.
    Error(kingtide_status status, kingtide_error *handle)
        : status_(static_cast<Status>(status)), handle_(handle, kingtide_error_free) {}
    /// An error of the program itself, for example to roll back a transaction.
    explicit Error(std::string message, Status status = Status::other) : status_(status), message_(std::move(message)) {}

    Status status() const { return status_; }
    /// The message, in English, with file and offset where they are known.
    std::string message() const {
        if (!handle_) return message_.empty() ? std::string(name(status_)) : message_;
        return kingtide_error_message(handle_.get());
    }
    /// The file that it is about; empty if there is none.
    std::string path() const {
        const char *path = handle_ ? kingtide_error_path(handle_.get()) : nullptr;
        return path ? path : "";
    }
    /// The byte offset in that file, where it is known.
    std::optional<uint64_t> offset() const {
        uint64_t offset = 0;
        return handle_ && kingtide_error_offset(handle_.get(), &offset) ? std::optional(offset) : std::nullopt;
    }
    /// Whether the same call may succeed later with the same arguments.
    bool is_retryable() const { return handle_ && kingtide_error_is_retryable(handle_.get()); }
    /// Whether the transaction that failed with it may succeed if it is run again from its beginning.
    bool is_transient_conflict() const { return handle_ && kingtide_error_is_transient_conflict(handle_.get()); }

private:
    Status status_;
    std::string message_;
    std::shared_ptr<kingtide_error> handle_;  // shared, because exceptions must be copyable; an error does not change
};

inline std::ostream &operator<<(std::ostream &out, const Error &error) {
    return out << name(error.status()) << ": " << error.message();
}

#if KINGTIDE_EXCEPTIONS
/// The exception that `Result::value` throws.
class Exception : public std::runtime_error {
public:
    explicit Exception(Error error) : std::runtime_error(error.message()), error_(std::move(error)) {}
    const Error &error() const noexcept { return error_; }
    Status status() const noexcept { return error_.status(); }

private:
    Error error_;
};
#endif

namespace detail {

/// Throws the error, or aborts a program without exceptions.
[[noreturn]] inline void fail(const Error &error) {
#if KINGTIDE_EXCEPTIONS
    throw Exception(error);
#else
    std::fprintf(stderr, "kingtide: %s\n", error.message().c_str());
    std::abort();
#endif
}

struct Nothing {};

}  // namespace detail

/// A value or an error.
template <class T>
class [[nodiscard]] Result {
public:
    using Stored = std::conditional_t<std::is_void_v<T>, detail::Nothing, T>;

    /// Success without a value.
    template <class U = T, class = std::enable_if_t<std::is_void_v<U>>>
    Result() : state_(std::in_place_index<0>) {}
    /// Success.
    template <class U = T, class = std::enable_if_t<!std::is_void_v<U>>>
    Result(Stored value) : state_(std::in_place_index<0>, std::move(value)) {}
    /// Failure.
    Result(Error error) : state_(std::in_place_index<1>, std::move(error)) {}

    bool ok() const { return state_.index() == 0; }
    explicit operator bool() const { return ok(); }
    /// `Status::ok`, or that of the error.
    Status status() const { return ok() ? Status::ok : error().status(); }
    /// The error. Only after a failure.
    const Error &error() const & { return *std::get_if<1>(&state_); }
    Error error() && { return std::move(*std::get_if<1>(&state_)); }

    /// The value. A failure is thrown as an `Exception`.
    T value() && {
        if (!ok()) detail::fail(error());
        if constexpr (!std::is_void_v<T>) return std::move(*std::get_if<0>(&state_));
    }
    std::conditional_t<std::is_void_v<T>, void, Stored &> value() & {
        if (!ok()) detail::fail(error());
        if constexpr (!std::is_void_v<T>) return *std::get_if<0>(&state_);
    }
    std::conditional_t<std::is_void_v<T>, void, const Stored &> value() const & {
        if (!ok()) detail::fail(error());
        if constexpr (!std::is_void_v<T>) return *std::get_if<0>(&state_);
    }
    /// The value. Only after a success.
    template <class U = Stored>
    std::enable_if_t<!std::is_void_v<T>, U &> operator*() & {
        return *std::get_if<0>(&state_);
    }
    template <class U = Stored>
    std::enable_if_t<!std::is_void_v<T>, const U &> operator*() const & {
        return *std::get_if<0>(&state_);
    }
    template <class U = Stored>
    std::enable_if_t<!std::is_void_v<T>, U> operator*() && {
        return std::move(*std::get_if<0>(&state_));
    }
    template <class U = Stored>
    std::enable_if_t<!std::is_void_v<T>, U *> operator->() {
        return std::get_if<0>(&state_);
    }

private:
    std::variant<Stored, Error> state_;
};

namespace detail {

/// Makes a call whose last argument receives an error.
template <class Call>
Result<void> run(Call &&call) {
    kingtide_error *error = nullptr;
    kingtide_status status = call(&error);
    if (status == KINGTIDE_OK) return {};
    return Error(status, error);
}

/// Makes a call that sets a handle, and wraps that.
template <class T, class Handle, class Call>
Result<T> make(Call &&call) {
    Handle *handle = nullptr;
    auto done = run([&](kingtide_error **error) { return call(&handle, error); });
    if (!done) return std::move(done).error();
    return T(handle);
}

using Text = Owned<kingtide_text, kingtide_text_free>;
using Strings = Owned<kingtide_strings, kingtide_strings_free>;

template <class Call>
Result<std::string> text(Call &&call) {
    auto made = make<Text, kingtide_text>(std::forward<Call>(call));
    if (!made) return std::move(made).error();
    return std::string(kingtide_text_data(made->get()), kingtide_text_len(made->get()));
}

template <class Call>
Result<std::vector<std::string>> strings(Call &&call) {
    auto made = make<Strings, kingtide_strings>(std::forward<Call>(call));
    if (!made) return std::move(made).error();
    std::vector<std::string> all;
    for (size_t i = 0, n = kingtide_strings_count(made->get()); i < n; i++) {
        size_t len = 0;
        const char *string = kingtide_strings_get(made->get(), i, &len);
        all.emplace_back(string, len);
    }
    return all;
}

}  // namespace detail

/// What a commit survives.
enum class Durability : int32_t {
    /// As the database's option `durability` says.
    standard = KINGTIDE_DURABILITY_DEFAULT,
    process = KINGTIDE_DURABILITY_PROCESS,
    power = KINGTIDE_DURABILITY_POWER,
    none = KINGTIDE_DURABILITY_NONE,
};

/// Which effects of other transactions a transaction may see.
enum class Isolation : int32_t {
    read_uncommitted = KINGTIDE_READ_UNCOMMITTED,
    read_committed = KINGTIDE_READ_COMMITTED,
    repeatable_read = KINGTIDE_REPEATABLE_READ,
    snapshot = KINGTIDE_SNAPSHOT,
    serializable = KINGTIDE_SERIALIZABLE,
};

/// The mode of a lock.
enum class LockMode : int32_t { shared = KINGTIDE_LOCK_SHARED, exclusive = KINGTIDE_LOCK_EXCLUSIVE };

/// The bytes of a value, without a copy: they are in the block cache, or belong to this object. They do not change, regardless of later
/// writes. A value may keep a block of the cache in memory, so do not keep many without need.
class Value {
public:
    Value() : handle_(kingtide_value_new()) {}

    std::string_view view() const { return detail::view(kingtide_value_data(native()), size()); }
    operator std::string_view() const { return view(); }
    std::string string() const { return std::string(view()); }
    const char *data() const { return view().data(); }
    size_t size() const { return kingtide_value_len(native()); }
    /// Whether the last read into it found the key. Values that were returned always are.
    bool is_present() const { return kingtide_value_is_present(native()); }
    kingtide_value *native() const { return handle_.get(); }

private:
    detail::Owned<kingtide_value, kingtide_value_free> handle_;
};

inline bool operator==(const Value &value, std::string_view bytes) { return value.view() == bytes; }
inline bool operator!=(const Value &value, std::string_view bytes) { return value.view() != bytes; }

/// A consistent view of all families at one moment. Any number of threads may use it at once.
class Snapshot {
public:
    explicit Snapshot(kingtide_snapshot *handle) : handle_(handle) {}
    uint64_t sequence() const { return kingtide_snapshot_sequence(native()); }
    const kingtide_snapshot *native() const { return handle_.get(); }

private:
    detail::Owned<kingtide_snapshot, kingtide_snapshot_free> handle_;
};

/// One end of a range of keys.
class Bound {
public:
    static Bound none() { return Bound(KINGTIDE_UNBOUNDED, {}); }
    static Bound included(std::string_view key) { return Bound(KINGTIDE_INCLUDED, key); }
    static Bound excluded(std::string_view key) { return Bound(KINGTIDE_EXCLUDED, key); }
    kingtide_bound native() const { return {kind_, detail::data(key_), key_.size()}; }

private:
    Bound(int32_t kind, std::string_view key) : kind_(kind), key_(key) {}
    int32_t kind_;
    std::string_view key_;
};

/// Options of an iterator; by default it shows all entries. The bytes of the keys are used only during the call.
struct ReadOptions {
    Bound lower = Bound::none();
    Bound upper = Bound::none();
    /// Only keys that begin with this.
    std::optional<std::string_view> prefix = std::nullopt;
    /// The snapshot to read at; not for transactions.
    const Snapshot *snapshot = nullptr;
    /// Whether blocks that it reads may enter the block cache.
    bool fill_cache = true;
    /// Whether it reads ahead from the start.
    bool readahead = false;
    /// For a transaction: show the newest committed values.
    bool newest = false;

    kingtide_read_options native() const {
        kingtide_read_options options = {};
        options.size = sizeof options;
        options.lower = lower.native();
        options.upper = upper.native();
        if (prefix) {
            options.prefix = prefix->data() ? prefix->data() : "";
            options.prefix_len = prefix->size();
        }
        options.snapshot = snapshot ? snapshot->native() : nullptr;
        options.no_fill_cache = !fill_cache;
        options.readahead = readahead;
        options.newest = newest;
        return options;
    }
};

/// A cursor over the keys of a family, in both directions. It is invalid until a seek positions it. It owns the data that it reads, and
/// may outlive family and database handles; a cursor of a transaction ends with the transaction. For one thread at a time.
class Iterator {
public:
    explicit Iterator(kingtide_iter *handle) : handle_(handle) {}

    /// Moves. Returns true if it is at an entry; otherwise `status` says whether it reached the end or met an error.
    bool seek_to_first() { return kingtide_iter_seek_to_first(native()); }
    bool seek_to_last() { return kingtide_iter_seek_to_last(native()); }
    /// To the first key at or after `key`.
    bool seek(std::string_view key) { return kingtide_iter_seek(native(), detail::data(key), key.size()); }
    /// To the last key at or before `key`.
    bool seek_for_prev(std::string_view key) { return kingtide_iter_seek_for_prev(native(), detail::data(key), key.size()); }
    bool next() { return kingtide_iter_next(native()); }
    bool prev() { return kingtide_iter_prev(native()); }
    bool valid() const { return kingtide_iter_valid(native()); }
    Result<void> status() const {
        return detail::run([&](kingtide_error **error) { return kingtide_iter_status(native(), error); });
    }
    /// The key; valid until the iterator moves.
    std::string_view key() const {
        size_t len = 0;
        const uint8_t *data = kingtide_iter_key(native(), &len);
        return detail::view(data, len);
    }
    /// The value, read on the first call; valid until the iterator moves.
    Result<std::string_view> value() {
        const uint8_t *data = nullptr;
        size_t len = 0;
        auto read = detail::run([&](kingtide_error **error) { return kingtide_iter_value(native(), &data, &len, error); });
        if (!read) return std::move(read).error();
        return detail::view(data, len);
    }
    /// When the entry expires, in milliseconds since 1970; 0 if it does not.
    uint64_t expires_at_ms() const { return kingtide_iter_expires_at_ms(native()); }
    kingtide_iter *native() const { return handle_.get(); }

private:
    detail::Owned<kingtide_iter, kingtide_iter_free> handle_;
};

/// A key and its value, lent by a loop until its next iteration.
struct Entry {
    std::string_view key;
    std::string_view value;
};

namespace detail {

/// The position of a loop over a range. It stays in place while its `Range` moves.
struct Walk {
    Iterator iterator;
    bool forward;
    bool throws = false;
    bool keys_only = false;
    Entry entry = {};
    std::optional<Error> error = std::nullopt;

    /// Fills the entry; false at the end, and after an error.
    bool load(bool there) {
        if (there) {
            entry.key = iterator.key();
            if (keys_only) return true;
            auto value = iterator.value();
            if (value) {
                entry.value = *value;
                return true;
            }
            error = std::move(value).error();
        } else if (auto status = iterator.status(); !status) {
            error = std::move(status).error();
        }
        if (error && throws) fail(*error);
        return false;
    }
};

}  // namespace detail

/// The entries of a range, for a range-based `for`. It can be iterated once. An error ends the loop: check `status` after it, or
/// let `throwing` throw it.
class Range {
public:
    Range(Iterator iterator, bool forward) : walk_(new detail::Walk{std::move(iterator), forward}) {}

    /// Makes the loop throw errors as an `Exception`.
    Range throwing() && {
        walk_->throws = true;
        return std::move(*this);
    }
    /// Skips reading values: the values of the entries are empty.
    Range keys_only() && {
        walk_->keys_only = true;
        return std::move(*this);
    }
    /// The error that ended the loop, if any.
    Result<void> status() const {
        if (walk_->error) return *walk_->error;
        return {};
    }

    class Cursor {
    public:
        using iterator_category = std::input_iterator_tag;
        using value_type = Entry;
        using difference_type = std::ptrdiff_t;
        using pointer = const Entry *;
        using reference = const Entry &;

        Cursor() = default;
        explicit Cursor(detail::Walk *walk) : walk_(walk) {}
        reference operator*() const { return walk_->entry; }
        pointer operator->() const { return &walk_->entry; }
        Cursor &operator++() {
            bool there = walk_->forward ? walk_->iterator.next() : walk_->iterator.prev();
            if (!walk_->load(there)) walk_ = nullptr;
            return *this;
        }
        void operator++(int) { ++*this; }
        bool operator==(const Cursor &other) const { return walk_ == other.walk_; }
        bool operator!=(const Cursor &other) const { return walk_ != other.walk_; }

    private:
        detail::Walk *walk_ = nullptr;
    };

    Cursor begin() {
        bool there = walk_->forward ? walk_->iterator.seek_to_first() : walk_->iterator.seek_to_last();
        return Cursor(walk_->load(there) ? walk_.get() : nullptr);
    }
    Cursor end() { return Cursor(); }

private:
    std::unique_ptr<detail::Walk> walk_;
};

/// Reads one value in pieces, from any position; it may be larger than memory. It shows the value as of the moment when it was
/// opened. For one thread at a time.
class Reader {
public:
    explicit Reader(kingtide_reader *handle) : handle_(handle) {}
    uint64_t size() const { return kingtide_reader_len(native()); }
    /// Reads up to `size` bytes from `offset` on; returns their number, which is smaller only at the value's end.
    Result<size_t> read(uint64_t offset, void *buffer, size_t size) {
        size_t read = 0;
        auto done = detail::run(
            [&](kingtide_error **error) { return kingtide_reader_read(native(), offset, buffer, size, &read, error); });
        if (!done) return std::move(done).error();
        return read;
    }
    kingtide_reader *native() const { return handle_.get(); }

private:
    detail::Owned<kingtide_reader, kingtide_reader_free> handle_;
};

/// A finished value that waits for the commit that puts it under a key. It can be committed only once. Its file is removed
/// when this, and every batch and transaction that has it, is destroyed without a commit. Any number of threads may use it at once.
class StagedValue {
public:
    explicit StagedValue(kingtide_staged_value *handle) : handle_(handle) {}
    uint64_t size() const { return kingtide_staged_value_len(native()); }
    const kingtide_staged_value *native() const { return handle_.get(); }

private:
    detail::Owned<kingtide_staged_value, kingtide_staged_value_free> handle_;
};

/// Writes one value of any length in pieces, in bounded memory. No read finds it before it is finished, put under a key, and
/// committed. A writer that is destroyed earlier leaves nothing behind. For one thread at a time.
class ValueWriter {
public:
    explicit ValueWriter(kingtide_value_writer *handle) : handle_(handle) {}
    /// Appends bytes. After an error the value is discarded, and every further call returns the same error.
    Result<void> write(std::string_view bytes) {
        return detail::run([&](kingtide_error **error) {
            return kingtide_value_writer_write(native(), bytes.data(), bytes.size(), error);
        });
    }
    /// Appends the entire contents of a stream; returns the number of bytes. An error of the stream itself stays in its state.
    Result<uint64_t> write_from(std::istream &in) {
        std::vector<char> piece(64 * 1024);
        uint64_t done = 0;
        while (in.read(piece.data(), static_cast<std::streamsize>(piece.size())), in.gcount() > 0) {
            auto len = static_cast<size_t>(in.gcount());
            if (auto written = write({piece.data(), len}); !written) return std::move(written).error();
            done += len;
        }
        return done;
    }
    /// Bytes written so far; 0 once it is finished.
    uint64_t size() const { return kingtide_value_writer_len(handle_.get()); }
    /// Finishes the value. The writer cannot be used any further.
    Result<StagedValue> finish() {
        return detail::make<StagedValue, kingtide_staged_value>([&](auto **value, kingtide_error **error) {
            return kingtide_value_writer_finish(native(), value, error);
        });
    }
    kingtide_value_writer *native() const { return handle_.get(); }

private:
    detail::Owned<kingtide_value_writer, kingtide_value_writer_free> handle_;
};

/// A value as a seekable `std::istream`. An error of the engine sets `badbit`, or, in programs compiled without exceptions, ends the
/// stream; `error` returns it.
class ValueStream : public std::istream {
public:
    explicit ValueStream(Reader reader, size_t buffer = 64 * 1024) : std::istream(nullptr), source_(std::move(reader), buffer) {
        rdbuf(&source_);
    }
    ValueStream(ValueStream &&other) : std::istream(std::move(other)), source_(std::move(other.source_)) { set_rdbuf(&source_); }
    ValueStream &operator=(ValueStream &&other) {
        std::istream::operator=(std::move(other));
        source_ = std::move(other.source_);
        return *this;
    }
    const std::optional<Error> &error() const { return source_.error; }

private:
    class Source : public std::streambuf {
    public:
        Source(Reader reader, size_t buffer) : reader_(std::move(reader)), piece_(std::max<size_t>(buffer, 1)) {}
        std::optional<Error> error;

    protected:
        int_type underflow() override {
            start_ += static_cast<uint64_t>(egptr() - eback());
            auto read = reader_.read(start_, piece_.data(), piece_.size());
            size_t len = read ? *read : 0;
            setg(piece_.data(), piece_.data(), piece_.data() + len);
            if (!read) {
                error = std::move(read).error();
                // A stream buffer has no other way to set badbit than to throw; the stream catches this.
#if KINGTIDE_EXCEPTIONS
                throw Exception(*error);
#endif
            }
            return len ? traits_type::to_int_type(*gptr()) : traits_type::eof();
        }
        pos_type seekoff(off_type offset, std::ios_base::seekdir from, std::ios_base::openmode) override {
            auto here = static_cast<off_type>(start_) + (gptr() - eback());
            auto end = static_cast<off_type>(reader_.size());
            auto base = from == std::ios_base::beg ? 0 : from == std::ios_base::cur ? here : end;
            if (offset < -base || offset > end - base) return pos_type(off_type(-1));  // their sum may be no number
            return seekpos(base + offset, std::ios_base::in);
        }
        pos_type seekpos(pos_type to, std::ios_base::openmode) override {
            if (off_type(to) < 0 || static_cast<uint64_t>(off_type(to)) > reader_.size()) return pos_type(off_type(-1));
            start_ = static_cast<uint64_t>(off_type(to));
            setg(piece_.data(), piece_.data(), piece_.data());
            return to;
        }

    private:
        Reader reader_;
        std::vector<char> piece_;
        uint64_t start_ = 0;
    };
    Source source_;
};

/// The result of `compare_and_swap`.
struct Swap {
    bool swapped;
    /// The actual value; empty if the value was swapped or the key absent.
    std::optional<Value> found;
};

namespace detail {

/// Reads several keys, by a function that takes slices and places.
template <class Call>
Result<std::vector<std::optional<Value>>> multi_get(const std::vector<std::string_view> &keys, Call &&call) {
    std::vector<kingtide_slice> slices;
    std::vector<Value> values(keys.size());
    std::vector<kingtide_value *> places;
    for (std::string_view key : keys) slices.push_back({key.data(), key.size()});
    for (Value &value : values) places.push_back(value.native());
    auto read = run([&](kingtide_error **error) { return call(slices.data(), slices.size(), places.data(), error); });
    if (!read) return std::move(read).error();
    std::vector<std::optional<Value>> found(keys.size());
    for (size_t i = 0; i < keys.size(); i++) {
        if (values[i].is_present()) found[i] = std::move(values[i]);
    }
    return found;
}

/// Reads a key into a new value.
template <class Call>
Result<std::optional<Value>> get(Call &&call) {
    Value value;
    auto read = run([&](kingtide_error **error) { return call(value.native(), error); });
    if (!read) return std::move(read).error();
    return value.is_present() ? std::optional(std::move(value)) : std::nullopt;
}

inline Result<Range> range(Result<Iterator> iterator, bool forward) {
    if (!iterator) return std::move(iterator).error();
    return Range(std::move(*iterator), forward);
}

}  // namespace detail

/// Options for opening a database or creating a family. They are set by name, from text: sizes as "64M". The first error is
/// remembered, and returned by the call to which the options are passed.
class Options {
public:
    Options() : handle_(kingtide_options_new()) {}

    Options &set(const std::string &name, const std::string &value) & {
        return note(detail::run([&](kingtide_error **error) {
            return kingtide_options_set(native(), name.c_str(), value.c_str(), error);
        }));
    }
    Options set(const std::string &name, const std::string &value) && { return std::move(set(name, value)); }
    /// The key order of the default family.
    Options &order(const std::string &name) & {
        return note(detail::run(
            [&](kingtide_error **error) { return kingtide_options_set_order(native(), name.c_str(), error); }));
    }
    Options order(const std::string &name) && { return std::move(order(name)); }
    /// Adds a custom key order: negative, zero or positive if the first key sorts before, equals, or sorts after the
    /// second. It is called from many threads at once and must not throw.
    Options &add_order(const std::string &name, std::function<int(std::string_view, std::string_view)> compare) & {
        using Compare = decltype(compare);
        auto context = std::make_unique<Compare>(std::move(compare));
        auto call = [](void *order, const uint8_t *a, size_t a_len, const uint8_t *b, size_t b_len) noexcept -> int32_t {
            return (*static_cast<Compare *>(order))(detail::view(a, a_len), detail::view(b, b_len));
        };
        auto destroy = [](void *order) noexcept { delete static_cast<Compare *>(order); };
        // The library owns the context from here on, also when it refuses the order.
        return note(detail::run([&](kingtide_error **error) {
            return kingtide_options_add_order(native(), name.c_str(), call, nullptr, context.release(), destroy, error);
        }));
    }
    Options add_order(const std::string &name, std::function<int(std::string_view, std::string_view)> compare) && {
        return std::move(add_order(name, std::move(compare)));
    }
    /// Loads the stored options and key order of the default family of the database in `path`, and the database's `change_retention`.
    Options &load(const std::string &path) & {
        return note(
            detail::run([&](kingtide_error **error) { return kingtide_options_load(native(), path.c_str(), error); }));
    }
    Options load(const std::string &path) && { return std::move(load(path)); }
    Result<std::string> get(const std::string &name) const {
        return detail::text([&](kingtide_text **text, kingtide_error **error) {
            return kingtide_options_get(native(), name.c_str(), text, error);
        });
    }
    /// The first error of the calls above.
    Result<void> status() const {
        if (error_) return *error_;
        return {};
    }
    kingtide_options *native() const { return handle_.get(); }

private:
    Options &note(Result<void> done) {
        if (!done && !error_) error_ = std::move(done).error();
        return *this;
    }
    detail::Owned<kingtide_options, kingtide_options_free> handle_;
    std::optional<Error> error_;
};

/// A column family: one of the ordered maps of a database. Cheap to copy: copies share the handle. Any number of threads may use it at
/// once. It does not keep the database open.
class Family {
public:
    explicit Family(kingtide_family *handle) : handle_(handle, kingtide_family_free) {}

    Result<void> put(std::string_view key, std::string_view value) const {
        return run([&](auto **error) {
            return kingtide_family_put(native(), key.data(), key.size(), value.data(), value.size(), error);
        });
    }
    /// Sets a key that expires after `ttl`.
    Result<void> put(std::string_view key, std::string_view value, std::chrono::milliseconds ttl) const {
        auto ms = static_cast<uint64_t>(std::max<int64_t>(ttl.count(), 0));
        return run([&](auto **error) {
            return kingtide_family_put_ttl(native(), key.data(), key.size(), value.data(), value.size(), ms, error);
        });
    }
    /// Deletes a key. Deleting an absent key is not an error.
    Result<void> remove(std::string_view key) const {
        return run([&](auto **error) { return kingtide_family_delete(native(), key.data(), key.size(), error); });
    }
    /// Deletes a key that was put exactly once since its last delete.
    Result<void> single_remove(std::string_view key) const {
        return run([&](auto **error) { return kingtide_family_single_delete(native(), key.data(), key.size(), error); });
    }
    /// Deletes all keys from `start` up to, and without, `end`.
    Result<void> remove_range(std::string_view start, std::string_view end) const {
        return run([&](auto **error) {
            return kingtide_family_delete_range(native(), start.data(), start.size(), end.data(), end.size(), error);
        });
    }
    Result<void> remove_prefix(std::string_view prefix) const {
        return run([&](auto **error) { return kingtide_family_delete_prefix(native(), prefix.data(), prefix.size(), error); });
    }
    /// Reads a key. An absent key is not an error.
    Result<std::optional<Value>> get(std::string_view key) const {
        return detail::get([&](kingtide_value *value, kingtide_error **error) {
            return kingtide_family_get(native(), key.data(), key.size(), value, error);
        });
    }
    /// Reads a key as of a snapshot.
    Result<std::optional<Value>> get(std::string_view key, const Snapshot &snapshot) const {
        return detail::get([&](kingtide_value *value, kingtide_error **error) {
            return kingtide_family_get_at(native(), snapshot.native(), key.data(), key.size(), value, error);
        });
    }
    /// Reads a key into a value that can be reused for many reads; returns false if the key is absent.
    Result<bool> get_into(std::string_view key, Value &value) const {
        auto read = run(
            [&](auto **error) { return kingtide_family_get(native(), key.data(), key.size(), value.native(), error); });
        if (!read) return std::move(read).error();
        return value.is_present();
    }
    /// Reads several keys as of one moment.
    Result<std::vector<std::optional<Value>>> multi_get(const std::vector<std::string_view> &keys) const {
        return detail::multi_get(keys, [&](const auto *slices, size_t n, auto *const *places, kingtide_error **error) {
            return kingtide_family_multi_get(native(), slices, n, places, nullptr, error);
        });
    }
    /// Replaces the value if it is `expected`, atomically. `nullopt` stands for no value, on both sides.
    Result<Swap> compare_and_swap(std::string_view key, std::optional<std::string_view> expected,
                                  std::optional<std::string_view> desired) const {
        kingtide_slice old = {}, next = {};
        if (expected) old = {expected->data(), expected->size()};
        if (desired) next = {desired->data(), desired->size()};
        Swap swap = {};
        Value found;
        auto done = run([&](auto **error) {
            return kingtide_family_compare_and_swap(native(), key.data(), key.size(), expected ? &old : nullptr,
                                                    desired ? &next : nullptr, found.native(), &swap.swapped, error);
        });
        if (!done) return std::move(done).error();
        if (found.is_present()) swap.found = std::move(found);
        return swap;
    }
    Result<Iterator> iterator(const ReadOptions &options = {}) const {
        auto native_options = options.native();
        return detail::make<Iterator, kingtide_iter>([&](auto **iter, kingtide_error **error) {
            return kingtide_family_iter(native(), &native_options, iter, error);
        });
    }
    /// The entries selected by the options, in the family's order or backwards.
    Result<Range> scan(const ReadOptions &options = {}, bool forward = true) const {
        return detail::range(iterator(options), forward);
    }
    /// The entries from `start` up to, and without, `end`.
    Result<Range> range(std::string_view start, std::string_view end, bool forward = true) const {
        ReadOptions options;
        options.lower = Bound::included(start);
        options.upper = Bound::excluded(end);
        return scan(options, forward);
    }
    Result<Range> prefix(std::string_view prefix, bool forward = true) const {
        ReadOptions options;
        options.prefix = prefix;
        return scan(options, forward);
    }
    /// Opens a value for reading in pieces; empty if the key is absent.
    Result<std::optional<Reader>> reader(std::string_view key, const Snapshot *snapshot = nullptr) const {
        kingtide_reader *reader = nullptr;
        auto opened = run([&](auto **error) {
            return kingtide_family_get_reader(native(), snapshot ? snapshot->native() : nullptr, key.data(), key.size(),
                                              &reader, error);
        });
        if (!opened) return std::move(opened).error();
        return reader ? std::optional(Reader(reader)) : std::nullopt;
    }
    /// Begins a value that is written in pieces.
    Result<ValueWriter> value_writer() const {
        return detail::make<ValueWriter, kingtide_value_writer>(
            [&](auto **writer, kingtide_error **error) { return kingtide_family_value_writer(native(), writer, error); });
    }
    /// Sets a key to a staged value of this family.
    Result<void> put_staged(std::string_view key, const StagedValue &value) const {
        return run([&](auto **error) {
            return kingtide_family_put_staged(native(), key.data(), key.size(), value.native(), error);
        });
    }
    Result<std::string> name() const {
        return detail::text([&](auto **text, kingtide_error **error) { return kingtide_family_name(native(), text, error); });
    }
    Result<std::string> order() const {
        return detail::text([&](auto **text, kingtide_error **error) { return kingtide_family_order(native(), text, error); });
    }
    Result<std::string> option(const std::string &option) const {
        return detail::text([&](auto **text, kingtide_error **error) {
            return kingtide_family_get_option(native(), option.c_str(), text, error);
        });
    }
    Result<void> set_option(const std::string &option, const std::string &value) const {
        return run([&](auto **error) {
            return kingtide_family_set_option(native(), option.c_str(), value.c_str(), error);
        });
    }
    Result<void> flush() const {
        return run([&](auto **error) { return kingtide_family_flush(native(), error); });
    }
    /// Compacts everything into the deepest level.
    Result<void> compact() const {
        return run([&](auto **error) { return kingtide_family_compact_range(native(), nullptr, nullptr, error); });
    }
    const kingtide_family *native() const { return handle_.get(); }

private:
    template <class Call>
    static Result<void> run(Call &&call) {
        return detail::run([&](kingtide_error **error) { return call(error); });
    }
    std::shared_ptr<kingtide_family> handle_;
};

/// Operations on any families, committed atomically with `Db::write`. A refused operation does not change the batch. For one thread at
/// a time.
class Batch {
public:
    Batch() : handle_(kingtide_batch_new()) {}

    Result<void> put(const Family &family, std::string_view key, std::string_view value) {
        return detail::run([&](kingtide_error **error) {
            return kingtide_batch_put(native(), family.native(), key.data(), key.size(), value.data(), value.size(), error);
        });
    }
    Result<void> put(const Family &family, std::string_view key, std::string_view value, std::chrono::milliseconds ttl) {
        auto ms = static_cast<uint64_t>(std::max<int64_t>(ttl.count(), 0));
        return detail::run([&](kingtide_error **error) {
            return kingtide_batch_put_ttl(native(), family.native(), key.data(), key.size(), value.data(), value.size(), ms,
                                          error);
        });
    }
    /// Sets a key that expires at a moment given in milliseconds since 1970.
    Result<void> put_until(const Family &family, std::string_view key, std::string_view value, uint64_t expires_at_ms) {
        return detail::run([&](kingtide_error **error) {
            return kingtide_batch_put_until(native(), family.native(), key.data(), key.size(), value.data(), value.size(),
                                            expires_at_ms, error);
        });
    }
    /// Sets a key to a staged value of the same family, without a copy. With a `ttl` above zero it expires after that time.
    Result<void> put_staged(const Family &family, std::string_view key, const StagedValue &value,
                            std::chrono::milliseconds ttl = std::chrono::milliseconds(0)) {
        auto ms = static_cast<uint64_t>(std::max<int64_t>(ttl.count(), 0));
        return detail::run([&](kingtide_error **error) {
            return kingtide_batch_put_staged(native(), family.native(), key.data(), key.size(), value.native(), ms, error);
        });
    }
    Result<void> remove(const Family &family, std::string_view key) {
        return detail::run([&](kingtide_error **error) {
            return kingtide_batch_delete(native(), family.native(), key.data(), key.size(), error);
        });
    }
    Result<void> single_remove(const Family &family, std::string_view key) {
        return detail::run([&](kingtide_error **error) {
            return kingtide_batch_single_delete(native(), family.native(), key.data(), key.size(), error);
        });
    }
    Result<void> remove_range(const Family &family, std::string_view start, std::string_view end) {
        return detail::run([&](kingtide_error **error) {
            return kingtide_batch_delete_range(native(), family.native(), start.data(), start.size(), end.data(), end.size(),
                                               error);
        });
    }
    Result<void> remove_prefix(const Family &family, std::string_view prefix) {
        return detail::run([&](kingtide_error **error) {
            return kingtide_batch_delete_prefix(native(), family.native(), prefix.data(), prefix.size(), error);
        });
    }
    /// Removes all operations, but keeps the memory.
    void clear() { kingtide_batch_clear(native()); }
    /// The number of operations.
    size_t size() const { return kingtide_batch_count(native()); }
    bool empty() const { return size() == 0; }
    kingtide_batch *native() const { return handle_.get(); }

private:
    detail::Owned<kingtide_batch, kingtide_batch_free> handle_;
};

/// Options of a transaction. By default: snapshot isolation, optimistic.
struct TransactionOptions {
    Isolation isolation = Isolation::snapshot;
    /// Take locks when keys are written, and read for update, instead of checking at commit.
    bool locking = false;
    bool read_only = false;
    Durability durability = Durability::standard;
    /// Its timeout; zero for the database's option.
    std::chrono::milliseconds timeout{0};
    /// Its lock timeout; zero not to wait at all, `nullopt` for the database's option.
    std::optional<std::chrono::milliseconds> lock_timeout = std::nullopt;
    /// Read as of this snapshot instead of now.
    const Snapshot *snapshot = nullptr;
};

/// Operations that take effect together, or not at all. Rolled back when it is destroyed before a commit, unless it was prepared.
/// For one thread at a time.
class Transaction {
public:
    explicit Transaction(kingtide_txn *handle) : handle_(handle) {}

    Result<void> put(const Family &family, std::string_view key, std::string_view value) {
        return run([&](auto **error) {
            return kingtide_txn_put(native(), family.native(), key.data(), key.size(), value.data(), value.size(), error);
        });
    }
    Result<void> put(const Family &family, std::string_view key, std::string_view value, std::chrono::milliseconds ttl) {
        auto ms = static_cast<uint64_t>(std::max<int64_t>(ttl.count(), 0));
        return run([&](auto **error) {
            return kingtide_txn_put_ttl(native(), family.native(), key.data(), key.size(), value.data(), value.size(), ms,
                                        error);
        });
    }
    Result<void> put_until(const Family &family, std::string_view key, std::string_view value, uint64_t expires_at_ms) {
        return run([&](auto **error) {
            return kingtide_txn_put_until(native(), family.native(), key.data(), key.size(), value.data(), value.size(),
                                          expires_at_ms, error);
        });
    }
    /// Sets a key to a staged value of the same family, which can be put again after a conflict. A transaction that is prepared
    /// keeps the value for itself, after a crash too, until it is committed or rolled back.
    Result<void> put_staged(const Family &family, std::string_view key, const StagedValue &value,
                            std::chrono::milliseconds ttl = std::chrono::milliseconds(0)) {
        auto ms = static_cast<uint64_t>(std::max<int64_t>(ttl.count(), 0));
        return run([&](auto **error) {
            return kingtide_txn_put_staged(native(), family.native(), key.data(), key.size(), value.native(), ms, error);
        });
    }
    Result<void> remove(const Family &family, std::string_view key) {
        return run(
            [&](auto **error) { return kingtide_txn_delete(native(), family.native(), key.data(), key.size(), error); });
    }
    Result<void> single_remove(const Family &family, std::string_view key) {
        return run([&](auto **error) {
            return kingtide_txn_single_delete(native(), family.native(), key.data(), key.size(), error);
        });
    }
    Result<void> remove_range(const Family &family, std::string_view start, std::string_view end) {
        return run([&](auto **error) {
            return kingtide_txn_delete_range(native(), family.native(), start.data(), start.size(), end.data(), end.size(),
                                             error);
        });
    }
    Result<void> remove_prefix(const Family &family, std::string_view prefix) {
        return run([&](auto **error) {
            return kingtide_txn_delete_prefix(native(), family.native(), prefix.data(), prefix.size(), error);
        });
    }
    /// Reads a key: its own write, or what its level lets it see.
    Result<std::optional<Value>> get(const Family &family, std::string_view key) {
        return get_by(kingtide_txn_get, family, key);
    }
    /// Reads a key that it is going to write; no other transaction can change it before the commit.
    Result<std::optional<Value>> get_for_update(const Family &family, std::string_view key) {
        return get_by(kingtide_txn_get_for_update, family, key);
    }
    /// Reads a key that must not change until the commit.
    Result<std::optional<Value>> get_for_share(const Family &family, std::string_view key) {
        return get_by(kingtide_txn_get_for_share, family, key);
    }
    Result<std::vector<std::optional<Value>>> multi_get(const Family &family, const std::vector<std::string_view> &keys) {
        return detail::multi_get(keys, [&](const auto *slices, size_t n, auto *const *places, kingtide_error **error) {
            return kingtide_txn_multi_get(native(), family.native(), slices, n, places, nullptr, error);
        });
    }
    /// An iterator over the entries that it sees; its later writes do not show.
    Result<Iterator> iterator(const Family &family, const ReadOptions &options = {}) {
        auto native_options = options.native();
        return detail::make<Iterator, kingtide_iter>([&](auto **iter, kingtide_error **error) {
            return kingtide_txn_iter(native(), family.native(), &native_options, iter, error);
        });
    }
    Result<Range> scan(const Family &family, const ReadOptions &options = {}, bool forward = true) {
        return detail::range(iterator(family, options), forward);
    }
    /// Locks a key, which need not exist. Only for locking transactions.
    Result<void> lock(const Family &family, std::string_view key, LockMode mode = LockMode::exclusive) {
        return run([&](auto **error) {
            return kingtide_txn_lock(native(), family.native(), key.data(), key.size(), static_cast<int32_t>(mode), error);
        });
    }
    Result<void> lock_range(const Family &family, Bound lower, Bound upper, LockMode mode = LockMode::exclusive) {
        auto from = lower.native(), to = upper.native();
        return run([&](auto **error) {
            return kingtide_txn_lock_range(native(), family.native(), &from, &to, static_cast<int32_t>(mode), error);
        });
    }
    Result<void> set_savepoint(const std::string &name) {
        return run([&](auto **error) { return kingtide_txn_set_savepoint(native(), name.c_str(), error); });
    }
    /// Rolls back the writes since a savepoint, which stays.
    Result<void> rollback_to_savepoint(const std::string &name) {
        return run([&](auto **error) { return kingtide_txn_rollback_to_savepoint(native(), name.c_str(), error); });
    }
    Result<void> release_savepoint(const std::string &name) {
        return run([&](auto **error) { return kingtide_txn_release_savepoint(native(), name.c_str(), error); });
    }
    /// Makes further reads see the current state, at the repeatable-read level.
    Result<void> refresh_snapshot() {
        return run([&](auto **error) { return kingtide_txn_refresh_snapshot(native(), error); });
    }
    /// Commits; returns the sequence number of the last operation.
    Result<uint64_t> commit() {
        uint64_t sequence = 0;
        auto done = run([&](auto **error) { return kingtide_txn_commit(native(), &sequence, error); });
        if (!done) return std::move(done).error();
        return sequence;
    }
    /// Logs it under a name; from then on its commit cannot fail with a conflict. It stays in doubt until it is committed or rolled back.
    Result<void> prepare(std::string_view xid) {
        return run([&](auto **error) { return kingtide_txn_prepare(native(), xid.data(), xid.size(), error); });
    }
    Result<void> rollback() {
        return run([&](auto **error) { return kingtide_txn_rollback(native(), error); });
    }
    /// Restarts with the same options.
    Result<void> reset() {
        return run([&](auto **error) { return kingtide_txn_reset(native(), error); });
    }
    uint64_t id() const { return kingtide_txn_id(native()); }
    /// The number of operations that it has written.
    size_t size() const { return kingtide_txn_count(native()); }
    kingtide_txn *native() const { return handle_.get(); }

private:
    template <class Call>
    static Result<void> run(Call &&call) {
        return detail::run([&](kingtide_error **error) { return call(error); });
    }
    template <class Function>
    Result<std::optional<Value>> get_by(Function read, const Family &family, std::string_view key) {
        return detail::get([&](kingtide_value *value, kingtide_error **error) {
            return read(native(), family.native(), key.data(), key.size(), value, error);
        });
    }
    detail::Owned<kingtide_txn, kingtide_txn_free> handle_;
};

namespace detail {

/// Rolls a transaction back at the end of a scope, even after an exception: a prepared transaction would otherwise stay in doubt. Does
/// nothing if the transaction has ended.
struct Undo {
    const Transaction &txn;
    ~Undo() { kingtide_txn_rollback(txn.native(), nullptr); }
};

}  // namespace detail

/// Options of one commit.
struct WriteOptions {
    Durability durability = Durability::standard;
    /// Return `Status::busy` instead of waiting when writers are being slowed, and `Status::conflict` instead of waiting for a lock
    /// that a transaction or an ingest holds.
    bool no_wait = false;
};

/// An open database. Any number of threads may use it at once. It is closed when it is destroyed; `close` closes it earlier and reports errors.
class Db {
public:
    explicit Db(kingtide_db *handle) : handle_(handle) {}

    /// Opens the database in directory `path`, creating it unless the options say otherwise.
    static Result<Db> open(const std::string &path, const Options &options = {}) { return open_by(kingtide_db_open, path, options); }
    /// Opens it read-only, even while another process writes to it.
    static Result<Db> open_read_only(const std::string &path, const Options &options = {}) {
        return open_by(kingtide_db_open_read_only, path, options);
    }
    Result<void> close() {
        return run([&](auto **error) { return kingtide_db_close(native(), error); });
    }

    /// The family named "default".
    Result<Family> default_family() const {
        return detail::make<Family, kingtide_family>(
            [&](auto **family, kingtide_error **error) { return kingtide_db_default_family(native(), family, error); });
    }
    Result<Family> family(const std::string &name) const {
        return detail::make<Family, kingtide_family>([&](auto **family, kingtide_error **error) {
            return kingtide_db_family(native(), name.c_str(), family, error);
        });
    }
    /// Creates a family. `order` names a key order, built in or added to the options of the open.
    Result<Family> create_family(const std::string &name, const Options &options = {}, const std::string &order = "bytewise") {
        if (auto status = options.status(); !status) return std::move(status).error();
        return detail::make<Family, kingtide_family>([&](auto **family, kingtide_error **error) {
            return kingtide_db_create_family(native(), name.c_str(), options.native(), order.c_str(), family, error);
        });
    }
    /// Creates a family with the current contents of another. What the new family shows at snapshots that were taken before is undefined.
    Result<Family> clone_family(const std::string &from, const std::string &to) {
        return detail::make<Family, kingtide_family>([&](auto **family, kingtide_error **error) {
            return kingtide_db_clone_family(native(), from.c_str(), to.c_str(), family, error);
        });
    }
    Result<void> drop_family(const std::string &name) {
        return run([&](auto **error) { return kingtide_db_drop_family(native(), name.c_str(), error); });
    }
    Result<void> rename_family(const std::string &old_name, const std::string &new_name) {
        return run([&](auto **error) {
            return kingtide_db_rename_family(native(), old_name.c_str(), new_name.c_str(), error);
        });
    }
    /// Names of all families, sorted.
    Result<std::vector<std::string>> families() const {
        return detail::strings([&](auto **names, kingtide_error **error) { return kingtide_db_families(native(), names, error); });
    }

    /// Commits a batch atomically. Returns the sequence number of the last operation. The batch is unchanged.
    Result<uint64_t> write(Batch &batch, const WriteOptions &how = {}) {
        kingtide_write_options options = {};
        options.size = sizeof options;
        options.durability = static_cast<int32_t>(how.durability);
        options.no_wait = how.no_wait;
        uint64_t sequence = 0;
        auto done = run([&](auto **error) { return kingtide_db_write(native(), batch.native(), &options, &sequence, error); });
        if (!done) return std::move(done).error();
        return sequence;
    }
    Result<Snapshot> snapshot() const {
        return detail::make<Snapshot, kingtide_snapshot>(
            [&](auto **snapshot, kingtide_error **error) { return kingtide_db_snapshot(native(), snapshot, error); });
    }
    /// Takes a snapshot and keeps it under a name until it is dropped or the database closes.
    Result<Snapshot> create_named_snapshot(const std::string &name) {
        return detail::make<Snapshot, kingtide_snapshot>([&](auto **snapshot, kingtide_error **error) {
            return kingtide_db_name_snapshot(native(), name.c_str(), snapshot, error);
        });
    }
    Result<Snapshot> named_snapshot(const std::string &name) const {
        return detail::make<Snapshot, kingtide_snapshot>([&](auto **snapshot, kingtide_error **error) {
            return kingtide_db_named_snapshot(native(), name.c_str(), snapshot, error);
        });
    }
    Result<void> drop_named_snapshot(const std::string &name) {
        return run([&](auto **error) { return kingtide_db_drop_named_snapshot(native(), name.c_str(), error); });
    }
    Result<std::vector<std::string>> snapshot_names() const {
        return detail::strings(
            [&](auto **names, kingtide_error **error) { return kingtide_db_snapshot_names(native(), names, error); });
    }

    Result<Transaction> begin(const TransactionOptions &how = {}) {
        kingtide_txn_options options = {};
        options.size = sizeof options;
        options.isolation = static_cast<int32_t>(how.isolation);
        options.locking = how.locking;
        options.read_only = how.read_only;
        options.durability = static_cast<int32_t>(how.durability);
        options.timeout_ms = static_cast<uint64_t>(std::max<int64_t>(how.timeout.count(), 0));
        if (how.lock_timeout) options.lock_timeout_ms = how.lock_timeout->count() > 0 ? how.lock_timeout->count() : KINGTIDE_NO_WAIT;
        options.snapshot = how.snapshot ? how.snapshot->native() : nullptr;
        return detail::make<Transaction, kingtide_txn>(
            [&](auto **txn, kingtide_error **error) { return kingtide_txn_begin(native(), &options, txn, error); });
    }
    /// Runs `body` in a transaction and commits it. After a conflict it runs `body` again from the beginning, up to
    /// `attempts` times, with random waits in between. `body` takes a `Transaction &` and returns a `Result`; it may run several
    /// times, so it should change nothing but the database. An error of its own rolls the transaction back, and so does an
    /// exception, which is passed on, even if `body` has prepared the transaction. Returns what `body` returned in the attempt that was
    /// committed. After an attempt that failed with `Status::busy` or `Status::lock_timeout`, no other begins once a minute has passed since
    /// the first one began, as measured by `Clock`.
    template <class Body, class Clock = std::chrono::steady_clock>
    auto transact(Body &&body, TransactionOptions how = serializable(), unsigned attempts = 100)
        -> std::invoke_result_t<Body &, Transaction &> {
        auto begun = begin(how);
        if (!begun) return std::move(begun).error();
        Transaction txn = std::move(*begun);
        detail::Undo undo{txn};
        std::minstd_rand random(static_cast<std::minstd_rand::result_type>(txn.id()));
        auto began = Clock::now();
        for (unsigned attempt = 1;; attempt++) {
            auto result = body(txn);
            std::optional<Error> error;
            if (!result) {
                error = result.error();
            } else if (auto committed = txn.commit(); !committed) {
                error = std::move(committed).error();
            } else {
                return result;
            }
            if (auto undone = txn.rollback(); !undone) return std::move(undone).error();
            if (!error->is_transient_conflict() || attempt >= attempts) return std::move(*error);
            // This attempt may have waited for a minute, and so may the next one.
            auto timed_out = error->status() == Status::busy || error->status() == Status::lock_timeout;
            if (timed_out && Clock::now() - began >= std::chrono::minutes(1)) return std::move(*error);
            auto longest = std::min<uint64_t>(uint64_t{50} << std::min(attempt - 1, 8U), 10'000);
            std::this_thread::sleep_for(std::chrono::microseconds(random() % longest));
            if (auto anew = txn.reset(); !anew) return std::move(anew).error();
        }
    }
    /// The names of prepared transactions that are neither committed nor rolled back, oldest first.
    Result<std::vector<std::string>> prepared() const {
        using List = detail::Owned<kingtide_prepared_list, kingtide_prepared_list_free>;
        auto list = detail::make<List, kingtide_prepared_list>(
            [&](auto **prepared, kingtide_error **error) { return kingtide_db_prepared(native(), prepared, error); });
        if (!list) return std::move(list).error();
        std::vector<std::string> names;
        kingtide_prepared_info info = {};
        info.size = sizeof info;
        for (size_t i = 0; kingtide_prepared_list_get(list->get(), i, &info); i++) {
            names.emplace_back(detail::view(info.xid, info.xid_len));
        }
        return names;
    }
    Result<void> commit_prepared(std::string_view xid) {
        return run([&](auto **error) { return kingtide_db_commit_prepared(native(), xid.data(), xid.size(), nullptr, error); });
    }
    Result<void> rollback_prepared(std::string_view xid) {
        return run([&](auto **error) { return kingtide_db_rollback_prepared(native(), xid.data(), xid.size(), error); });
    }

    Result<void> set_option(const std::string &name, const std::string &value) {
        return run([&](auto **error) { return kingtide_db_set_option(native(), name.c_str(), value.c_str(), error); });
    }
    /// Fsyncs the log: everything committed so far survives a power cut.
    Result<void> sync() {
        return run([&](auto **error) { return kingtide_db_sync(native(), error); });
    }
    Result<void> flush() {
        return run([&](auto **error) { return kingtide_db_flush(native(), error); });
    }
    Result<void> wait_for_background() {
        return run([&](auto **error) { return kingtide_db_wait_for_background(native(), error); });
    }
    /// Creates a copy as of now in a directory that is empty or absent, by hard links where possible.
    Result<void> checkpoint(const std::string &path) const {
        return run([&](auto **error) { return kingtide_db_checkpoint(native(), path.c_str(), nullptr, error); });
    }
    /// All statistics as text in the format of Prometheus.
    Result<std::string> prometheus() const {
        return detail::text([&](auto **text, kingtide_error **error) { return kingtide_db_prometheus(native(), text, error); });
    }
    uint64_t latest_sequence() const { return kingtide_db_latest_sequence(native()); }
    kingtide_db *native() const { return handle_.get(); }

    /// The default options of `transact`: serializable, optimistic.
    static TransactionOptions serializable() {
        TransactionOptions how;
        how.isolation = Isolation::serializable;
        return how;
    }

private:
    template <class Call>
    static Result<void> run(Call &&call) {
        return detail::run([&](kingtide_error **error) { return call(error); });
    }
    template <class Function>
    static Result<Db> open_by(Function open, const std::string &path, const Options &options) {
        if (auto status = options.status(); !status) return std::move(status).error();
        return detail::make<Db, kingtide_db>(
            [&](auto **db, kingtide_error **error) { return open(path.c_str(), options.native(), db, error); });
    }
    detail::Owned<kingtide_db, kingtide_db_free> handle_;
};

}  // namespace kingtide

#endif
