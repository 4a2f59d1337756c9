# MariaDB of Debian 12 with ENGINE=KINGTIDE. From the root of the repository:
#
#   docker build -f docker/mariadb.Dockerfile -t kingtide-mariadb .
#   docker run -d --name tides -v tides:/var/lib/mysql -e MARIADB_USER=ann -e MARIADB_PASSWORD=secret -e MARIADB_DATABASE=harbour kingtide-mariadb
#   docker exec -it tides mariadb
#
# The plugin is experimental. Docker has not built this file yet. `packaging/docker-check mariadb` carries it out without Docker, and passes
# (results/packages.txt).

FROM debian:12 AS build
RUN apt-get update -qq \
    && apt-get install -y -qq --no-install-recommends binutils build-essential ca-certificates curl git \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /kingtide
COPY . .
# The server is installed here for its version and headers; the plugin loads only into that version.
RUN . .ci/setup && mariadb/setup packages && mariadb/setup headers && mariadb/setup build --target ha_kingtide \
    && packaging/deb/build plugin && packaging/deb/build tools \
    && dpkg-query -W -f '${Package}=${Version}\n' \
        mariadb-server mariadb-server-core mariadb-client mariadb-client-core mariadb-common libmariadb3 >target/packages/server

FROM debian:12
COPY --from=build /kingtide/target/packages/*.deb /kingtide/target/packages/server /packages/
# Each part of the server in that version: apt would take what mariadb-server depends on, its program too, in the newest one.
RUN apt-get update -qq \
    && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
        $(cat /packages/server) /packages/*.deb \
    && rm -rf /var/lib/apt/lists/* /packages /var/lib/mysql/* \
    && install -d -o mysql -g mysql /run/mysqld
COPY docker/mariadb-start /usr/local/bin/
VOLUME /var/lib/mysql
EXPOSE 3306
USER mysql
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s CMD mariadb-admin ping || exit 1
ENTRYPOINT ["/usr/local/bin/mariadb-start"]
