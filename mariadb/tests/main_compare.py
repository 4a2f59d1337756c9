#!/usr/bin/env python3
"""Compares what two engines answered to one test of the server, without what the optimizer estimates.

    main_compare.py EXPECTED ACTUAL

Lines that belong to plans are left out: rows of EXPLAIN, their notes, EXPLAIN FORMAT=JSON and ANALYZE. Names of the engines are the
same name. Prints what differs then, as a unified diff, and fails if anything does.
"""

import difflib
import re
import sys

SELECTS = r"(SIMPLE|PRIMARY|SUBQUERY|DEPENDENT SUBQUERY|UNCACHEABLE SUBQUERY|DERIVED|PUSHED DERIVED|LATERAL DERIVED|UNION|" \
    r"DEPENDENT UNION|UNCACHEABLE UNION|UNION RESULT|UNIT RESULT|MATERIALIZED|INTERSECT|EXCEPT|INSERT|RECURSIVE UNION|" \
    r"INTERSECT RESULT|EXCEPT RESULT|DELETE|UPDATE)"
PLAN = re.compile(rf"^(\d+|NULL)\t{SELECTS}\t|^Note\t1003\t|^\s*[{{}}\]\"]|^(Handler_|Last_query_cost|Sort_|Select_)|^EXPLAIN$")
SAME = ((re.compile(r"\b(InnoDB|KINGTIDE)\b", re.IGNORECASE), "ENGINE"),
        (re.compile(r"\tLSM\t"), "\tBTREE\t"))


def answers(path):
    with open(path, encoding="latin-1") as f:
        lines = [line.rstrip("\n") for line in f]
    for pattern, word in SAME:
        lines = [pattern.sub(word, line) for line in lines]
    return [line for line in lines if not PLAN.match(line)]


def main():
    expected, actual = (answers(path) for path in sys.argv[1:3])
    different = list(difflib.unified_diff(expected, actual, lineterm="", n=6))
    print("\n".join(different))
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
