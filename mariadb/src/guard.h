/* Part of the MariaDB storage engine for Kingtide. GPL-2.0: see mariadb/COPYING. */
#pragma once

#include <exception>
#include <new>
#include <type_traits>

/** The boundary to the server, which no exception may cross: the server uses none and would be terminated by one. */
namespace kingtide {

/** Writes about an exception to the server's log. Each side of the boundary has its own. */
void report_exception(const char *what);

/** Returns what `call` returns; `no_memory` if memory ran out, and `failed` after any other exception. */
template <typename R, typename F>
R guarded(R no_memory, R failed, F &&call) {
  try {
    return call();
  } catch (const std::bad_alloc &) {
    report_exception("out of memory");
    return no_memory;
  } catch (const std::exception &e) {
    report_exception(e.what());
  } catch (...) {
    report_exception("an unknown exception");
  }
  return failed;
}

/** The same for a function that returns nothing. */
template <typename F>
void guarded(F &&call) {
  guarded(0, 0, [&] {
    call();
    return 0;
  });
}

/** A function that the server calls by its address: Guarded<function, no_memory, failed>::call is it, guarded. */
template <auto F, int NO_MEMORY = 0, int FAILED = 0>
struct Guarded;

template <typename R, typename... A, R (*F)(A...), int NO_MEMORY, int FAILED>
struct Guarded<F, NO_MEMORY, FAILED> {
  static R call(A... arguments) {
    if constexpr (std::is_void_v<R>)
      guarded([&] { F(arguments...); });
    else
      return guarded<R>(static_cast<R>(NO_MEMORY), static_cast<R>(FAILED), [&] { return F(arguments...); });
  }
};

}  // namespace kingtide
