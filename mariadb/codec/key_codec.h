/* Part of the MariaDB storage engine for Kingtide. GPL-2.0: see mariadb/COPYING. */
#pragma once

#include <vector>

#include "slice.h"

/**
  Keys whose bytes sort like the columns from which they were made. This code does not depend on the server: a KeyPart describes
  each column, and the caller supplies the weights of text.

  A part consists of the following, in this order:

      nullable parts   1 byte    0 for NULL, which nothing follows; 1 otherwise
      INTEGER          n bytes   most significant first; if it is signed, with the sign bit flipped
      IMAGE            n bytes   an image of fixed length that sorts bytewise (Field::sort_string)
      BYTES            0 becomes 0 255, other bytes are unchanged; 0 0 ends the part
      TEXT             weights of a collation that pads with spaces, see below
      LEVELS           weights of a collation that compares level by level: each level as TEXT, or as BYTES if it does not pad

  All bytes of a descending part are inverted. No part is a prefix of another part with the same description. Parts can therefore be
  concatenated, and a key has given values in its first parts exactly if it begins with their bytes.

  TEXT. Under PAD SPACE, "a" equals "a " and sorts after "a\t": it compares as if followed by infinitely many spaces. Let s be the
  weight of a space and u its length. Weights are processed in units of u bytes, without those of trailing spaces. Units other than
  s are unchanged. A run of n times s is replaced by

      s 1 n       if a lower unit follows
      s 2         at the end of the text
      s 3 ~n      if a higher unit follows

  where n takes 2 bytes, most significant first, and ~n is its complement. Weights have fewer than 65,536 units, because the
  server's keys are shorter than that. This sorts correctly. The first difference between two texts may be in a unit other than s,
  or one of them may have s there and the other may not: both compare as they should. It may be in the byte after an s, where
  lower < end < higher. Or it is in the lengths of runs that both end with a lower (higher) unit: then the longer run is greater
  (less), because it still has spaces where the other text already has a lower (higher) unit.
*/
namespace kingtide {

enum class PartKind : uint8_t { Integer, Image, Bytes, Text, Levels };

struct KeyPart {
  PartKind kind = PartKind::Image;
  bool nullable = false;
  bool descending = false;
  bool is_unsigned = false;
  /** Length of an INTEGER or IMAGE in bytes. */
  uint32_t length = 0;
  /** TEXT only: the weight of a space. */
  std::string space;
  /** LEVELS only: the weight of a space in each level; empty for a level that does not pad. */
  std::vector<std::string> spaces;
};

class KeyWriter {
 public:
  explicit KeyWriter(std::string &out) : out_(out) {}

  void null(const KeyPart &part);
  /** Appends an integer, given in the server's form: least significant byte first. */
  void integer(const KeyPart &part, const uint8_t *native);
  /** Appends an IMAGE of the part's length, BYTES of any length, or the weights of TEXT. */
  void value(const KeyPart &part, Slice bytes);
  /** Appends the weights of LEVELS, in the order of the levels. */
  void levels(const KeyPart &part, const std::vector<std::string> &weights);

 private:
  size_t begin(const KeyPart &part);
  void end(const KeyPart &part, size_t from);
  std::string &out_;
};

/** One part of a key. */
struct PartValue {
  bool is_null = false;
  /** Length of the part in the key, in bytes. */
  size_t size = 0;
};

/** Parses the part at the beginning of `key`. Returns false if the key does not begin with such a part. */
bool parse_part(const KeyPart &part, Slice key, PartValue *value);

/** Converts the integer part at the beginning of `key`, which must exist and not be NULL, into the server's form. */
void read_integer(const KeyPart &part, Slice key, uint8_t *native);

/** Returns the least key that is greater than all keys that begin with `prefix`, or an empty one if there is none. */
std::string after_prefix(Slice prefix);

}  // namespace kingtide
