"""What the benchmarks and torture tests of the MariaDB storage engine share: private servers, a client, engines' settings.

Only Python's standard library (3.9 or later) and the programs of the server's own packages are used.
"""
