"""What a replica must be able to follow: data definition and manipulation, in blocks that each leave tables behind.

A block is a name, its statements, and the tables to compare afterwards. No statement names an engine: tables are in each
server's own.
"""

BLOCKS = [
    ("rows", """
        CREATE TABLE a (id INT AUTO_INCREMENT PRIMARY KEY, v INT, s VARCHAR(100), UNIQUE KEY (s), KEY (v))
        INSERT INTO a (v, s) SELECT seq, MD5(seq) FROM seq_1_to_500
        UPDATE a SET v = v * 2 WHERE id % 3 = 0
        UPDATE a SET id = id + 10000 WHERE id < 20
        DELETE FROM a WHERE v BETWEEN 100 AND 150
        REPLACE INTO a (id, v, s) VALUES (400, 1, MD5(401)), (402, 2, 'two')
        INSERT INTO a (id, v, s) VALUES (300, 1, 'x') ON DUPLICATE KEY UPDATE v = v + 1000, s = 'changed'
        INSERT IGNORE INTO a (v, s) VALUES (1, 'two'), (2, 'three')
        DELETE FROM a ORDER BY v, id LIMIT 7
        """, ["a"]),
    ("transactions", """
        CREATE TABLE b (id INT PRIMARY KEY, v INT)
        BEGIN
        INSERT INTO b VALUES (1, 1), (2, 2)
        SAVEPOINT s
        UPDATE b SET v = 99
        ROLLBACK TO SAVEPOINT s
        INSERT INTO b VALUES (3, 3)
        COMMIT
        BEGIN
        DELETE FROM b
        ROLLBACK
        XA START 'x'
        INSERT INTO b VALUES (4, 4)
        XA END 'x'
        XA PREPARE 'x'
        XA COMMIT 'x'
        """, ["b"]),
    ("types", """
        CREATE TABLE c (id BIGINT UNSIGNED PRIMARY KEY, d DECIMAL(30,10), f DOUBLE, t DATETIME(6), e ENUM('a','b','c'), \
            st SET('x','y','z'), b BIT(17), u UUID, ip INET6, j JSON, bl LONGBLOB, ci VARCHAR(50) COLLATE utf8mb4_unicode_ci, \
            g INT AS (id % 7) VIRTUAL, p INT AS (id % 100) PERSISTENT, KEY (d), KEY (t), KEY (ci), KEY (g), KEY (bl(20)))
        INSERT INTO c (id, d, f, t, e, st, b, u, ip, j, bl, ci) SELECT seq, seq / 7, SQRT(seq), \
            '2024-02-29 12:00:00' + INTERVAL seq * 1001 MICROSECOND, 1 + seq % 3, seq % 8, seq * 31, \
            CONCAT('00000000-0000-0000-0000-', LPAD(seq, 12, '0')), CONCAT('fe80::', seq), JSON_OBJECT('n', seq), \
            REPEAT(CHAR(seq % 256), seq * 50), CONCAT(IF(seq % 2, 'ä', 'Z'), seq) FROM seq_1_to_200
        INSERT INTO c (id, bl) VALUES (18446744073709551615, REPEAT('large', 300000)), (201, NULL)
        UPDATE c SET bl = CONCAT(bl, 'more'), j = JSON_SET(j, '$.m', id), t = NULL WHERE ci LIKE 'A%'
        DELETE FROM c WHERE g = 3
        """, ["c"]),
    ("no key", """
        CREATE TABLE d (v INT, s VARCHAR(20))
        INSERT INTO d SELECT seq % 10, seq % 3 FROM seq_1_to_100
        UPDATE d SET v = v + 1 WHERE s = '1' LIMIT 5
        DELETE FROM d WHERE v = 3 LIMIT 2
        """, ["d"]),
    ("several tables", """
        CREATE TABLE m1 (id INT PRIMARY KEY, v INT)
        CREATE TABLE m2 (id INT PRIMARY KEY, v INT)
        INSERT INTO m1 SELECT seq, seq FROM seq_1_to_50
        INSERT INTO m2 SELECT seq, seq * 2 FROM seq_25_to_75
        UPDATE m1 JOIN m2 USING (id) SET m1.v = m2.v, m2.v = 0
        DELETE m1, m2 FROM m1 JOIN m2 USING (id) WHERE id % 4 = 0
        INSERT INTO m1 SELECT id + 1000, v FROM m2
        CREATE TRIGGER copy AFTER INSERT ON m1 FOR EACH ROW INSERT INTO m2 VALUES (NEW.id, -NEW.v)
        INSERT INTO m1 VALUES (5000, 5), (5001, 6)
        """, ["m1", "m2"]),
    ("definitions", """
        CREATE TABLE e (id INT PRIMARY KEY, v INT, w VARCHAR(10))
        INSERT INTO e SELECT seq, seq, seq FROM seq_1_to_300
        ALTER TABLE e ADD COLUMN n INT NOT NULL DEFAULT 7, ADD KEY by_v (v)
        ALTER TABLE e DROP COLUMN w
        ALTER TABLE e CHANGE v value BIGINT
        ALTER TABLE e ADD UNIQUE KEY u (value, n), DROP KEY by_v
        ALTER TABLE e DROP PRIMARY KEY, ADD PRIMARY KEY (n, id)
        UPDATE e SET n = 8 WHERE id > 200
        CREATE TABLE e2 LIKE e
        INSERT INTO e2 SELECT * FROM e WHERE id < 50
        RENAME TABLE e TO e_old, e2 TO e
        CREATE TABLE e3 (PRIMARY KEY (id)) SELECT id, value FROM e_old
        CREATE OR REPLACE TABLE e4 (id INT PRIMARY KEY)
        INSERT INTO e4 VALUES (1)
        TRUNCATE TABLE e4
        INSERT INTO e4 VALUES (2)
        CREATE TABLE gone (id INT PRIMARY KEY)
        DROP TABLE gone
        OPTIMIZE TABLE e_old
        ANALYZE TABLE e_old
        """, ["e", "e_old", "e3", "e4"]),
    ("partitions", """
        CREATE TABLE p (id INT PRIMARY KEY, v INT) PARTITION BY RANGE (id) (PARTITION p0 VALUES LESS THAN (100), \
            PARTITION p1 VALUES LESS THAN (200), PARTITION p2 VALUES LESS THAN MAXVALUE)
        INSERT INTO p SELECT seq, seq FROM seq_1_to_500
        UPDATE p SET id = id + 1000 WHERE id % 50 = 0
        ALTER TABLE p DROP PARTITION p1
        ALTER TABLE p TRUNCATE PARTITION p0
        ALTER TABLE p REORGANIZE PARTITION p2 INTO (PARTITION p2 VALUES LESS THAN (400), PARTITION p3 VALUES LESS THAN MAXVALUE)
        CREATE TABLE h (id INT PRIMARY KEY, v INT) PARTITION BY HASH (id) PARTITIONS 4
        INSERT INTO h SELECT seq, seq FROM seq_1_to_500
        ALTER TABLE h COALESCE PARTITION 1
        CREATE TABLE x LIKE h
        ALTER TABLE x REMOVE PARTITIONING
        INSERT INTO x SELECT id, v + 1 FROM h WHERE id % 3 = 0
        DELETE FROM h WHERE id % 3 = 1
        """, ["p", "h", "x"]),
    ("temporary", """
        CREATE TEMPORARY TABLE tmp (id INT PRIMARY KEY, v INT)
        INSERT INTO tmp SELECT seq, seq FROM seq_1_to_20
        CREATE TABLE t AS SELECT * FROM tmp WHERE id > 5
        DROP TEMPORARY TABLE tmp
        """, ["t"]),
]


def blocks():
    """The blocks with their statements as lists."""
    for name, text, tables in BLOCKS:
        yield name, [line.strip() for line in text.strip().replace("\\\n", "").splitlines()], tables
