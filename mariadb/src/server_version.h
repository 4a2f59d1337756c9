/* Part of the MariaDB storage engine for Kingtide. GPL-2.0: see mariadb/COPYING. */
#pragma once

/*
  All differences between the supported servers, MariaDB 10.11 and 11.8, that concern the plugin. The rest of the code is the same
  for both. If a change came with a minor version of several series, the code detects which form the headers have instead of
  comparing version numbers.
*/
#include "server.h"

#include <type_traits>
#include <utility>

namespace kingtide {

/* Callbacks of the handlerton: 10.11 passes the handlerton to all of them, 11.8 only to some. */

/** Wraps a function that does not take the handlerton, so that it can be assigned to a callback of either form. */
template <auto F>
struct Callback;

template <typename R, typename... A, R (*F)(A...)>
struct Callback<F> {
  using Plain = R (*)(A...);
  using WithHandlerton = R (*)(handlerton *, A...);
  static R call(A... arguments) { return F(arguments...); }
  static R call_with_handlerton(handlerton *, A... arguments) { return F(arguments...); }
  operator Plain() const { return call; }
  operator WithHandlerton() const { return call_with_handlerton; }
};

/* Names of columns, indexes and partitions, which are `const char *` or LEX_CSTRING, and their comparison. */

inline const char *text_of(const char *name) { return name; }
inline const char *text_of(const LEX_CSTRING &name) { return name.str; }

/** Whether two zero-terminated names are the same identifier. */
inline bool same_name(const char *a, const char *b) {
#ifdef my_strcasecmp
  return !my_strcasecmp(system_charset_info, a, b);
#else
  return system_charset_info->streq({a, strlen(a)}, {b, strlen(b)});
#endif
}

/** Whether an index is of a kind that the engine does not store: full-text, spatial, vector, or a hash of long values. */
inline bool is_foreign_kind(const KEY &key) {
#ifdef HA_FULLTEXT
  return (key.flags & (HA_FULLTEXT | HA_SPATIAL)) || key.algorithm == HA_KEY_ALG_LONG_HASH;
#else
  switch (key.algorithm) {
    case HA_KEY_ALG_UNDEF:
    case HA_KEY_ALG_BTREE:
    case HA_KEY_ALG_HASH:
      return false;
    default:
      return true;
  }
#endif
}

/** Whether the server itself enforces the uniqueness of an index: by a hash of long values, or by comparing periods. */
inline bool is_checked_by_server(const KEY &key) { return key.algorithm == HA_KEY_ALG_LONG_HASH || key.without_overlaps; }

/* How the server announces that ALTER TABLE copies. Later minor versions use other names and announce more kinds of copies. */

template <typename E, typename = void>
struct CopyNames {
  static bool begins(E e) { return e == E::HA_EXTRA_BEGIN_ALTER_COPY; }
  static bool ignores(E) { return false; }
  static bool ends(E e) { return e == E::HA_EXTRA_END_ALTER_COPY; }
  static bool aborts(E e) { return e == E::HA_EXTRA_ABORT_ALTER_COPY; }
};

template <typename E>
struct CopyNames<E, std::void_t<decltype(E::HA_EXTRA_BEGIN_COPY)>> {
  static bool begins(E e) { return e == E::HA_EXTRA_BEGIN_COPY || e == E::HA_EXTRA_BEGIN_ALTER_IGNORE_COPY; }
  static bool ignores(E e) { return e == E::HA_EXTRA_BEGIN_ALTER_IGNORE_COPY; }
  static bool ends(E e) { return e == E::HA_EXTRA_END_COPY; }
  static bool aborts(E e) { return e == E::HA_EXTRA_ABORT_COPY; }
};

using Copy = CopyNames<ha_extra_function>;

/** Whether an ALTER TABLE asks to be done in place: in 10.11, also by the variable alter_algorithm. */
template <typename A, typename = void>
struct Algorithm {
  static bool is_in_place(const A &alter, const THD *) { return alter.algorithm() == A::ALTER_TABLE_ALGORITHM_INPLACE; }
};

template <typename A>
struct Algorithm<A, std::void_t<decltype(std::declval<const A &>().algorithm(std::declval<const THD *>()))>> {
  static bool is_in_place(const A &alter, const THD *thd) { return alter.algorithm(thd) == A::ALTER_TABLE_ALGORITHM_INPLACE; }
};

inline bool is_in_place(const Alter_info &alter, const THD *thd) { return Algorithm<Alter_info>::is_in_place(alter, thd); }

/* The optimizer's interface. */

/** Table flags that only some versions have. */
#ifdef HA_NO_ONLINE_ALTER
// While ALTER TABLE ... ALGORITHM=COPY writes into a table of this engine, other sessions wait, as in 10.11.
constexpr ulonglong VERSION_TABLE_FLAGS = HA_NO_ONLINE_ALTER;
#else
constexpr ulonglong VERSION_TABLE_FLAGS = 0;
#endif

/** The handler's cost estimates. */
class CostingHandler : public handler {
 public:
  using handler::handler;

#if MYSQL_VERSION_ID < 110000
  /* In 10.11 the engine computes costs, in units of one random read. */
  double scan_time() override { return rows2double(row_count()) / 100 + 2; }
  double read_time(uint index, uint ranges, ha_rows rows) override {
    if (index == table->s->primary_key) return rows2double(rows) / 100 + ranges;
    return handler::read_time(index, ranges, rows);
  }
  ha_rows multi_range_read_info_const(uint index, RANGE_SEQ_IF *seq, void *param, uint ranges, uint *buffer, uint *flags,
                                      Cost_estimate *cost) override {
    mrr_.init(this, table);
    return mrr_.dsmrr_info_const(index, seq, param, ranges, buffer, flags, cost);
  }
#else
  /* From 11.0 on, the server computes them from the sizes in `stats` and the constants of set_costs. */
  ha_rows multi_range_read_info_const(uint index, RANGE_SEQ_IF *seq, void *param, uint ranges, uint *buffer, uint *flags,
                                      ha_rows limit, Cost_estimate *cost) override {
    mrr_.init(this, table);
    return mrr_.dsmrr_info_const(index, seq, param, ranges, buffer, flags, limit, cost);
  }
#endif

 protected:
  /** Estimated number of rows of the table. */
  virtual ha_rows row_count() const = 0;

  DsMrr_impl mrr_;
};

/** Sets the engine's cost constants in its handlerton. */
inline void set_costs([[maybe_unused]] handlerton *h) {
#if MYSQL_VERSION_ID >= 110000
  h->update_optimizer_costs = [](OPTIMIZER_COSTS *costs) {
    // In milliseconds. These are the server's values for MyRocks, which is also a log-structured merge tree.
    costs->row_next_find_cost = 0.00015161;
    costs->row_lookup_cost = 0.00150453;
    costs->key_next_find_cost = 0.00025108;
    costs->key_lookup_cost = 0.00079369;
    costs->row_copy_cost = 0.00006087;
  };
#endif
}

}  // namespace kingtide
