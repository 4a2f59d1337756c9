/* Part of the MariaDB storage engine for Kingtide. GPL-2.0: see mariadb/COPYING. */
#pragma once

#include "ha_kingtide.h"

#include "guard.h"

namespace kingtide {

/** The handler as the server sees it: C++ exceptions become server errors. */
class GuardedHandler final : public Handler {
 public:
  using Handler::Handler;

  int open(const char *name, int mode, uint test) override { return guard([&] { return Handler::open(name, mode, test); }); }
  int info(uint what) override { return guard([&] { return Handler::info(what); }); }
  int extra(ha_extra_function operation) override { return guard([&] { return Handler::extra(operation); }); }
  ha_rows records_in_range(uint index, const key_range *min, const key_range *max, page_range *pages) override {
    return guarded<ha_rows>(HA_POS_ERROR, HA_POS_ERROR, [&] { return Handler::records_in_range(index, min, max, pages); });
  }
  int analyze(THD *thd, HA_CHECK_OPT *options) override { return administer([&] { return Handler::analyze(thd, options); }); }
  int optimize(THD *thd, HA_CHECK_OPT *options) override { return administer([&] { return Handler::optimize(thd, options); }); }
  int check(THD *thd, HA_CHECK_OPT *options) override { return administer([&] { return Handler::check(thd, options); }); }
  int repair(THD *thd, HA_CHECK_OPT *options) override { return administer([&] { return Handler::repair(thd, options); }); }

  int create(const char *name, TABLE *form, HA_CREATE_INFO *create_info) override {
    return guard([&] { return Handler::create(name, form, create_info); });
  }
  int delete_table(const char *name) override { return guard([&] { return Handler::delete_table(name); }); }
  int rename_table(const char *from, const char *to) override { return guard([&] { return Handler::rename_table(from, to); }); }
  int truncate() override { return guard([&] { return Handler::truncate(); }); }
  int reset_auto_increment(ulonglong value) override { return guard([&] { return Handler::reset_auto_increment(value); }); }

  enum_alter_inplace_result check_if_supported_inplace_alter(TABLE *altered, Alter_inplace_info *alter) override {
    return guarded(HA_ALTER_ERROR, HA_ALTER_ERROR, [&] { return Handler::check_if_supported_inplace_alter(altered, alter); });
  }
  bool prepare_inplace_alter_table(TABLE *altered, Alter_inplace_info *alter) override {
    return told([&] { return Handler::prepare_inplace_alter_table(altered, alter); });
  }
  bool inplace_alter_table(TABLE *altered, Alter_inplace_info *alter) override {
    return told([&] { return Handler::inplace_alter_table(altered, alter); });
  }
  bool commit_inplace_alter_table(TABLE *altered, Alter_inplace_info *alter, bool commit) override {
    return told([&] { return Handler::commit_inplace_alter_table(altered, alter, commit); });
  }

  int write_row(const uchar *record) override { return guard([&] { return Handler::write_row(record); }); }
  int update_row(const uchar *before, const uchar *after) override {
    return guard([&] { return Handler::update_row(before, after); });
  }
  int delete_row(const uchar *record) override { return guard([&] { return Handler::delete_row(record); }); }
  void get_auto_increment(ulonglong offset, ulonglong increment, ulonglong wanted, ulonglong *first,
                          ulonglong *reserved) override {
    ulonglong value = *first;
    *first = ~0ULL;  // what stands for an error
    guarded([&] {
      Handler::get_auto_increment(offset, increment, wanted, &value, reserved);
      *first = value;
    });
  }

  int index_init(uint index, bool sorted) override { return guard([&] { return Handler::index_init(index, sorted); }); }
  int index_read_map(uchar *record, const uchar *key, key_part_map parts, ha_rkey_function flag) override {
    return guard([&] { return Handler::index_read_map(record, key, parts, flag); });
  }
  int index_next(uchar *record) override { return guard([&] { return Handler::index_next(record); }); }
  int index_prev(uchar *record) override { return guard([&] { return Handler::index_prev(record); }); }
  int index_first(uchar *record) override { return guard([&] { return Handler::index_first(record); }); }
  int index_last(uchar *record) override { return guard([&] { return Handler::index_last(record); }); }
  int index_next_same(uchar *record, const uchar *key, uint length) override {
    return guard([&] { return Handler::index_next_same(record, key, length); });
  }
  int rnd_init(bool scan) override { return guard([&] { return Handler::rnd_init(scan); }); }
  int rnd_next(uchar *record) override { return guard([&] { return Handler::rnd_next(record); }); }
  int rnd_pos(uchar *record, uchar *position) override { return guard([&] { return Handler::rnd_pos(record, position); }); }
  void position(const uchar *record) override {
    guarded([&] { Handler::position(record); });
  }

  int cmp_ref(const uchar *a, const uchar *b) override {
    const int by_bytes = memcmp(a, b, ref_length);  // with these too a row equals itself
    return guarded<int>(by_bytes, by_bytes, [&] { return Handler::cmp_ref(a, b); });
  }

  int external_lock(THD *thd, int type) override { return guard([&] { return Handler::external_lock(thd, type); }); }
  int start_stmt(THD *thd, thr_lock_type type) override { return guard([&] { return Handler::start_stmt(thd, type); }); }

 private:
  template <typename F>
  static int guard(F &&call) {
    return guarded<int>(HA_ERR_OUT_OF_MEM, HA_ERR_INTERNAL_ERROR, call);
  }
  template <typename F>
  static int administer(F &&call) {
    return guarded<int>(HA_ADMIN_FAILED, HA_ADMIN_FAILED, call);
  }
  /** Where true is returned, the client has been told why. */
  template <typename F>
  static bool told(F &&call) {
    const int result = guarded<int>(HA_ERR_OUT_OF_MEM, HA_ERR_INTERNAL_ERROR, [&] { return call() ? -1 : 0; });
    if (result == HA_ERR_OUT_OF_MEM) my_error(ER_OUT_OF_RESOURCES, MYF(0));
    if (result == HA_ERR_INTERNAL_ERROR) my_error(ER_INTERNAL_ERROR, MYF(0), "an exception, which is in the server's log");
    return result != 0;
  }
};

}  // namespace kingtide
