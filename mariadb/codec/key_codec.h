/* Part of the MariaDB storage engine for Kingtide. GPL-2.0: see mariadb/COPYING. */
#pragma once

#include <vector>

#include "slice.h"

/**
  Keys whose bytes sort as the columns they were made of do. Nothing here knows the server: what a column is, is described
  by a KeyPart, and weights of text come from the caller.

  A part is, in this order:

      nullable parts   1 byte    0 for NULL, and then nothing follows; 1 otherwise
      INTEGER          n bytes   most significant first, the sign bit flipped if it is signed
      IMAGE            n bytes   an image of fixed length that sorts bytewise (Field::sort_string)
      BYTES            0 becomes 0 255, other bytes stand for themselves; the end is 0 0
      TEXT             weights of a collation that pads with spaces, see below
      LEVELS           weights of a collation that compares level by level: each level as TEXT, or as BYTES where it does not pad

  All bytes of a descending part are inverted. No part is the beginning of another part of the same description, so parts
  can be put one behind the other, and a key that begins with the bytes of some parts is one in which these are equal.

  TEXT. Under PAD SPACE, "a" equals "a " and sorts behind "a\t": it compares as if spaces went on for ever. Let s be the
  weight of a space and u its length; weights are looked at in units of u bytes, and those for spaces at the end are cut
  off. Units other than s stand for themselves. In place of a run of n times s stands

      s 1 n       if a lower unit follows
      s 2         at the end of the text
      s 3 ~n      if a higher unit follows

  with n in 2 bytes, most significant first, and ~n inverted; weights have fewer than 65,536 units, since the server's keys are
  shorter than that. Why this sorts right: two texts differ first in a unit other than s, which compares as it should; or one
  has s there and the other does not, likewise; or in what follows an s, where lower < end < higher; or in the lengths of runs
  that both end in something lower (higher), of which the longer one is the greater (lesser), because it still has spaces where
  the other has something lower (higher) already.
*/
namespace kingtide {

enum class PartKind : uint8_t { Integer, Image, Bytes, Text, Levels };

struct KeyPart {
  PartKind kind = PartKind::Image;
  bool nullable = false;
  bool descending = false;
  bool is_unsigned = false;
  /** Bytes of an INTEGER or IMAGE. */
  uint32_t length = 0;
  /** The weight of a space; of TEXT only. */
  std::string space;
  /** Of LEVELS only: the weight of a space in each, or nothing for one that does not pad. */
  std::vector<std::string> spaces;
};

class KeyWriter {
 public:
  explicit KeyWriter(std::string &out) : out_(out) {}

  void null(const KeyPart &part);
  /** An integer as the server holds it in memory: least significant byte first. */
  void integer(const KeyPart &part, const uint8_t *native);
  /** An IMAGE of the part's length, BYTES of any length, or the weights of TEXT. */
  void value(const KeyPart &part, Slice bytes);
  /** The weights of LEVELS, in their order. */
  void levels(const KeyPart &part, const std::vector<std::string> &weights);

 private:
  size_t begin(const KeyPart &part);
  void end(const KeyPart &part, size_t from);
  std::string &out_;
};

/** What one part of a key holds. */
struct PartValue {
  bool is_null = false;
  /** Bytes of the key that the part takes up. */
  size_t size = 0;
};

/** Looks at the part at the beginning of `key`. False if there is no such part there. */
bool parse_part(const KeyPart &part, Slice key, PartValue *value);

/** Reads the integer part at the beginning of `key`, which is there and not NULL, into the server's form. */
void read_integer(const KeyPart &part, Slice key, uint8_t *native);

/** Makes the least key that is greater than all keys that begin with `prefix`: empty if there is none. */
std::string after_prefix(Slice prefix);

}  // namespace kingtide
