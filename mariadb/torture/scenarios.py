"""The scenarios: anomalies of transactions, after Hermitage's and Adya's names, and how locks behave.

The table is `t (id INT PRIMARY KEY, value INT)` with (1, 10) and (2, 20). What the levels must exclude is
`Scenario.levels`: there an anomaly must not be seen. Where a level may show it, it is played and reported all the same.
"""

from scenario import Scenario


def both_committed(o):
    return {1, 2} <= o.committed


ANOMALIES = [
    Scenario("G0", "dirty write", """
        1: UPDATE t SET value = 11 WHERE id = 1
        2: UPDATE t SET value = 12 WHERE id = 1
        1: UPDATE t SET value = 21 WHERE id = 2
        1: COMMIT
        2: UPDATE t SET value = 22 WHERE id = 2
        2: COMMIT
        """, lambda o: o.final in ([(1, 12), (2, 21)], [(1, 11), (2, 22)])),
    Scenario("G1a", "aborted read", """
        1: UPDATE t SET value = 101 WHERE id = 1
        2: SELECT * FROM t -> before
        1: ROLLBACK
        2: SELECT * FROM t -> after
        2: COMMIT
        """, lambda o: (1, 101) in o.rows("before") + o.rows("after")),
    Scenario("G1b", "intermediate read", """
        1: UPDATE t SET value = 101 WHERE id = 1
        2: SELECT * FROM t -> before
        1: UPDATE t SET value = 11 WHERE id = 1
        1: COMMIT
        2: SELECT * FROM t -> after
        2: COMMIT
        """, lambda o: (1, 101) in o.rows("before") + o.rows("after")),
    Scenario("G1c", "circular information flow", """
        1: UPDATE t SET value = 11 WHERE id = 1
        2: UPDATE t SET value = 22 WHERE id = 2
        1: SELECT value FROM t WHERE id = 2 -> one
        2: SELECT value FROM t WHERE id = 1 -> two
        1: COMMIT
        2: COMMIT
        """, lambda o: o.value("one") == 22 and o.value("two") == 11),
    Scenario("OTV", "observed transaction vanishes", """
        1: UPDATE t SET value = 11 WHERE id = 1
        1: UPDATE t SET value = 19 WHERE id = 2
        2: UPDATE t SET value = 12 WHERE id = 1
        1: COMMIT
        3: SELECT value FROM t WHERE id = 1 -> first
        2: UPDATE t SET value = 18 WHERE id = 2
        3: SELECT value FROM t WHERE id = 2 -> second
        2: COMMIT
        3: SELECT value FROM t WHERE id = 2 -> third
        3: SELECT value FROM t WHERE id = 1 -> fourth
        3: COMMIT
        """, lambda o: (o.value("third") == 18 and o.value("fourth") == 11) or 12 == o.value("first") != o.value("fourth")),
    Scenario("PMP", "predicate many preceders", """
        1: SELECT * FROM t WHERE value = 30 -> before
        2: INSERT INTO t VALUES (3, 30)
        2: COMMIT
        1: SELECT * FROM t WHERE value % 3 = 0 -> after
        1: COMMIT
        """, lambda o: o.rows("after") != [], levels=("RR", "SER")),
    Scenario("PMP-write", "predicate many preceders, of a write", """
        2: SELECT * FROM t WHERE id = 9
        1: UPDATE t SET value = value + 10
        2: DELETE FROM t WHERE value = 20
        1: COMMIT
        2: SELECT * FROM t WHERE value = 20 -> after
        2: COMMIT
        """, lambda o: o.rows("after") != [], levels=("SER",)),
    Scenario("P4", "lost update", """
        1: SELECT value FROM t WHERE id = 1
        2: SELECT value FROM t WHERE id = 1
        1: UPDATE t SET value = 11 WHERE id = 1
        2: UPDATE t SET value = 12 WHERE id = 1
        1: COMMIT
        2: COMMIT
        """, both_committed, levels=("SER",)),
    Scenario("P4-locked", "lost update, though the reads are FOR UPDATE", """
        1: SELECT value FROM t WHERE id = 1
        2: SELECT value FROM t WHERE id = 2
        1: SELECT value FROM t WHERE id = 1 FOR UPDATE
        2: SELECT value FROM t WHERE id = 1 FOR UPDATE -> read
        1: UPDATE t SET value = 11 WHERE id = 1
        1: COMMIT
        2: COMMIT
        """, lambda o: o.value("read") == 10),
    Scenario("G-single", "read skew", """
        1: SELECT value FROM t WHERE id = 1
        2: UPDATE t SET value = 12 WHERE id = 1
        2: UPDATE t SET value = 18 WHERE id = 2
        2: COMMIT
        1: SELECT value FROM t WHERE id = 2 -> read
        1: COMMIT
        """, lambda o: o.value("read") == 18, levels=("RR", "SER")),
    Scenario("G-single-predicate", "read skew of predicates", """
        1: SELECT * FROM t WHERE value % 5 = 0
        2: UPDATE t SET value = 12 WHERE value = 10
        2: COMMIT
        1: SELECT * FROM t WHERE value % 3 = 0 -> read
        1: COMMIT
        """, lambda o: o.rows("read") != [], levels=("RR", "SER")),
    Scenario("G-single-write", "read skew, of a write", """
        1: SELECT value FROM t WHERE id = 1
        2: UPDATE t SET value = 12 WHERE id = 1
        2: UPDATE t SET value = 18 WHERE id = 2
        2: COMMIT
        1: DELETE FROM t WHERE value = 20 -> deleted
        1: COMMIT
        """, lambda o: o["deleted"] == 0, levels=("SER",)),
    Scenario("G2-item", "write skew", """
        1: SELECT * FROM t WHERE id IN (1, 2)
        2: SELECT * FROM t WHERE id IN (1, 2)
        1: UPDATE t SET value = 11 WHERE id = 1
        2: UPDATE t SET value = 21 WHERE id = 2
        1: COMMIT
        2: COMMIT
        """, both_committed, levels=("SER",)),
    Scenario("G2-item-share", "write skew, though the reads are LOCK IN SHARE MODE", """
        1: SELECT * FROM t WHERE id IN (1, 2) LOCK IN SHARE MODE
        2: SELECT * FROM t WHERE id IN (1, 2) LOCK IN SHARE MODE
        1: UPDATE t SET value = 11 WHERE id = 1
        2: UPDATE t SET value = 21 WHERE id = 2
        1: COMMIT
        2: COMMIT
        """, both_committed),
    Scenario("G2", "write skew of phantoms", """
        1: SELECT * FROM t WHERE value % 3 = 0
        2: SELECT * FROM t WHERE value % 3 = 0
        1: INSERT INTO t VALUES (3, 30)
        2: INSERT INTO t VALUES (4, 42)
        1: COMMIT
        2: COMMIT
        """, both_committed, levels=("SER",)),
    Scenario("G2-reader", "the anomaly that needs a reader (Fekete 2004)", """
        1: SELECT * FROM t
        2: UPDATE t SET value = value + 5 WHERE id = 2
        2: COMMIT
        3: SELECT * FROM t -> read
        3: COMMIT
        1: UPDATE t SET value = 0 WHERE id = 1
        1: COMMIT
        """, lambda o: {1, 2, 3} <= o.committed and o["read"] == [(1, 10), (2, 25)], levels=("SER",)),
    Scenario("P3-locked", "phantom in a range that is read FOR UPDATE", """
        1: SELECT * FROM t WHERE id >= 1 FOR UPDATE
        2: INSERT INTO t VALUES (3, 30)
        2: COMMIT
        1: SELECT * FROM t WHERE id >= 1 FOR UPDATE -> again
        1: COMMIT
        """, lambda o: (3, 30) in o.rows("again"), levels=("RR", "SER")),
    Scenario("P3-gap", "phantom in an empty range that is read FOR UPDATE", """
        1: SELECT * FROM t WHERE id BETWEEN 10 AND 20 FOR UPDATE
        2: INSERT INTO t VALUES (15, 150)
        2: COMMIT
        1: SELECT * FROM t WHERE id BETWEEN 10 AND 20 FOR UPDATE -> again
        1: COMMIT
        """, lambda o: o.rows("again") != [], levels=("RR", "SER")),
    Scenario("P3-index", "phantom in a range of a secondary index that is read in share mode", """
        1: SELECT * FROM t FORCE INDEX (v) WHERE value BETWEEN 30 AND 40 LOCK IN SHARE MODE
        2: INSERT INTO t VALUES (3, 35)
        2: COMMIT
        1: SELECT * FROM t FORCE INDEX (v) WHERE value BETWEEN 30 AND 40 LOCK IN SHARE MODE -> again
        1: COMMIT
        """, lambda o: o.rows("again") != [], levels=("RR", "SER"), ddl=("CREATE INDEX v ON t (value)",)),
]

BEHAVIOURS = [
    Scenario("update-waits", "FOR UPDATE waits for a changed row, and then sees the change", """
        1: UPDATE t SET value = 11 WHERE id = 1
        2: SELECT value FROM t WHERE id = 1 FOR UPDATE -> read
        1: COMMIT
        2: COMMIT
        """, holds=lambda o: "read" in o.waited and o.value("read") == 11),
    Scenario("rows-apart", "writers of different rows do not wait", """
        1: UPDATE t SET value = 11 WHERE id = 1
        2: UPDATE t SET value = 21 WHERE id = 2
        1: COMMIT
        2: COMMIT
        """, holds=lambda o: not o.waited and not o.errors and o.final == [(1, 11), (2, 21)]),
    Scenario("plain-read", "a plain read does not wait for a writer", """
        1: UPDATE t SET value = 11 WHERE id = 1
        2: SELECT value FROM t WHERE id = 1 -> read
        1: COMMIT
        """, holds=lambda o: not o.waited and o.value("read") == 10, levels=("RC", "RR")),
    Scenario("autocommit-read", "nor does an autocommitted one, on any level", """
        1: BEGIN
        1: UPDATE t SET value = 11 WHERE id = 1
        2: SELECT value FROM t WHERE id = 1 -> read
        1: COMMIT
        """, holds=lambda o: not o.waited and o.value("read") == 10, begin=False),
    Scenario("nowait", "NOWAIT refuses at once", """
        1: UPDATE t SET value = 11 WHERE id = 1
        2: SELECT value FROM t WHERE id = 1 FOR UPDATE NOWAIT -> read
        2: SELECT value FROM t WHERE id = 2 FOR UPDATE NOWAIT -> other
        """, holds=lambda o: not o.waited and o["read"] == "error 1205" and o.value("other") == 20),
    Scenario("skip-locked", "SKIP LOCKED passes over locked rows", """
        1: SELECT * FROM t WHERE id = 1 FOR UPDATE
        2: SELECT * FROM t FOR UPDATE SKIP LOCKED -> read
        """, holds=lambda o: not o.waited and o["read"] == [(2, 20)], levels=("RC", "RR", "SER")),
    Scenario("share", "LOCK IN SHARE MODE admits readers and holds up writers", """
        1: SELECT * FROM t WHERE id = 1 LOCK IN SHARE MODE
        2: SELECT value FROM t WHERE id = 1 LOCK IN SHARE MODE -> read
        2: ROLLBACK
        3: UPDATE t SET value = 11 WHERE id = 1 -> write
        1: COMMIT
        3: COMMIT
        """, holds=lambda o: o.waited == {"write"} and o.value("read") == 10 and o.final[0] == (1, 11)),
    Scenario("deadlock", "a deadlock ends with error 1213 for one, and the other goes on", """
        1: UPDATE t SET value = 11 WHERE id = 1
        2: UPDATE t SET value = 21 WHERE id = 2
        1: UPDATE t SET value = 12 WHERE id = 2 -> one
        2: UPDATE t SET value = 22 WHERE id = 1 -> two
        1: COMMIT
        2: COMMIT
        """, holds=lambda o: sorted([str(o["one"]), str(o["two"])]) == ["1", "error 1213"]
             and o.final in ([(1, 11), (2, 12)], [(1, 22), (2, 21)])),
    Scenario("timeout", "a wait that lasts too long ends with 1205 and undoes its statement only", """
        1: UPDATE t SET value = 11 WHERE id = 1
        2: SET SESSION timeout = 1
        2: INSERT INTO t VALUES (3, 30)
        2: UPDATE t SET value = 12 WHERE id = 1 -> late
        2: AWAIT
        2: COMMIT
        1: ROLLBACK
        """, holds=lambda o: o["late"] == "error 1205" and o.final == [(1, 10), (2, 20), (3, 30)]),
    Scenario("kill-query", "KILL QUERY ends a wait with 1317, and the transaction stays", """
        1: UPDATE t SET value = 11 WHERE id = 1
        2: INSERT INTO t VALUES (3, 30)
        2: UPDATE t SET value = 12 WHERE id = 1 -> killed
        3: KILL QUERY id2
        2: AWAIT
        2: COMMIT
        1: ROLLBACK
        """, holds=lambda o: o["killed"] == "error 1317" and o.final == [(1, 10), (2, 20), (3, 30)]),
    Scenario("kill", "KILL rolls the transaction back and frees its locks", """
        1: UPDATE t SET value = 11 WHERE id = 1
        2: KILL id1
        2: SELECT value FROM t WHERE id = 1 FOR UPDATE -> read
        2: COMMIT
        """, holds=lambda o: o.value("read") == 10),
    Scenario("duplicate-waits", "an insert waits for one of the same key: 1062 if that is committed", """
        1: INSERT INTO t VALUES (3, 30)
        2: INSERT INTO t VALUES (3, 31) -> second
        1: COMMIT
        2: COMMIT
        """, holds=lambda o: "second" in o.waited and o["second"] == "error 1062" and o.final[2] == (3, 30)),
    Scenario("duplicate-undone", "and it succeeds if that is rolled back", """
        1: INSERT INTO t VALUES (3, 30)
        2: INSERT INTO t VALUES (3, 31) -> second
        1: ROLLBACK
        2: COMMIT
        """, holds=lambda o: "second" in o.waited and o["second"] == 1 and o.final[2] == (3, 31)),
    Scenario("unique-waits", "so for a unique secondary key", """
        1: INSERT INTO t VALUES (3, 30)
        2: INSERT INTO t VALUES (4, 30) -> second
        1: COMMIT
        2: COMMIT
        """, holds=lambda o: "second" in o.waited and o["second"] == "error 1062" and len(o.final) == 3,
             ddl=("CREATE UNIQUE INDEX v ON t (value)",)),
    Scenario("upsert-waits", "INSERT ... ON DUPLICATE KEY UPDATE waits, and counts on from what was committed", """
        1: UPDATE t SET value = 11 WHERE id = 1
        2: INSERT INTO t VALUES (1, 0) ON DUPLICATE KEY UPDATE value = value + 1 -> second
        1: COMMIT
        2: COMMIT
        """, holds=lambda o: "second" in o.waited and o.final[0] == (1, 12)),
    Scenario("counters", "two increments are two", """
        1: UPDATE t SET value = value + 1 WHERE id = 1
        2: UPDATE t SET value = value + 1 WHERE id = 1
        1: COMMIT
        2: COMMIT
        """, holds=lambda o: o.final[0] == (1, 12)),
    Scenario("statement", "a statement that fails half way leaves nothing, and the transaction stays", """
        1: INSERT INTO t VALUES (3, 30)
        1: INSERT INTO t VALUES (4, 40), (5, 50), (1, 0), (6, 60) -> fails
        1: COMMIT
        """, holds=lambda o: o["fails"] == "error 1062" and o.final == [(1, 10), (2, 20), (3, 30)]),
    Scenario("savepoint", "ROLLBACK TO SAVEPOINT undoes what came after it", """
        1: INSERT INTO t VALUES (3, 30)
        1: SAVEPOINT a
        1: UPDATE t SET value = 99
        1: DELETE FROM t WHERE id = 3
        1: ROLLBACK TO SAVEPOINT a -> back
        1: INSERT INTO t VALUES (4, 40)
        1: COMMIT
        """, holds=lambda o: o["back"] == 0 and o.final == [(1, 10), (2, 20), (3, 30), (4, 40)]),
    Scenario("own-writes", "a transaction reads its own writes, in any order, and others do not", """
        1: INSERT INTO t VALUES (3, 30)
        1: DELETE FROM t WHERE id = 1
        1: UPDATE t SET value = 21 WHERE id = 2
        1: SELECT * FROM t -> own
        2: SELECT * FROM t -> other
        1: COMMIT
        """, holds=lambda o: o["own"] == [(2, 21), (3, 30)] and o["other"] == [(1, 10), (2, 20)], levels=("RC", "RR")),
    Scenario("snapshot", "START TRANSACTION WITH CONSISTENT SNAPSHOT fixes the view at once", """
        1: START TRANSACTION WITH CONSISTENT SNAPSHOT -> start
        2: UPDATE t SET value = 11 WHERE id = 1
        1: SELECT value FROM t WHERE id = 1 -> read
        """, holds=lambda o: o["start"] == 0 and o.value("read") == 10, begin=False, levels=("RR",)),
    Scenario("read-only", "a READ ONLY transaction refuses writes", """
        1: START TRANSACTION READ ONLY
        1: UPDATE t SET value = 11 WHERE id = 1 -> write
        1: SELECT value FROM t WHERE id = 1 -> read
        1: COMMIT
        """, holds=lambda o: o["write"] == "error 1792" and o.value("read") == 10, begin=False),
    Scenario("truncate-waits", "TRUNCATE waits for a transaction that uses the table", """
        1: UPDATE t SET value = 11 WHERE id = 1
        2: TRUNCATE TABLE t -> truncate
        1: COMMIT
        """, holds=lambda o: "truncate" in o.waited and o.final == []),
]
