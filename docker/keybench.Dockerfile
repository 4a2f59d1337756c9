# keybench with the engines that it compares with: Kingtide, RocksDB, TidesDB, LMDB. From the root of the repository:
#
#   docker build -f docker/keybench.Dockerfile -t keybench .
#   docker run --rm -v bench:/bench keybench run mixed --backend kingtide,rocksdb,tidesdb
#
# Measure on a volume, as above, and not in the container's own layers, whose file system is another. Maven is in the first stage because RocksDB comes
# from its release for the Java virtual machine, the one that results in the repository are of.
# Docker has not built this file yet. `packaging/docker-check keybench` is to carry it out without Docker, and has not done so to the end.

FROM debian:12 AS build
RUN apt-get update -qq \
    && apt-get install -y -qq --no-install-recommends build-essential ca-certificates cmake curl git \
        libzstd-dev liblz4-dev libsnappy-dev maven \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /kingtide
COPY . .
RUN . .ci/setup && cargo build --release -p keybench && cargo xtask peers

FROM debian:12
RUN apt-get update -qq \
    && apt-get install -y -qq --no-install-recommends libstdc++6 libzstd1 liblz4-1 libsnappy1v5 zlib1g libbz2-1.0 \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --create-home bench && install -d -o bench /bench
COPY --from=build /kingtide/target/release/keybench /usr/local/bin/keybench
COPY --from=build /kingtide/target/peers/*.so /kingtide/target/peers/versions.txt /usr/local/lib/keybench-peers/
ENV KEYBENCH_PEERS=/usr/local/lib/keybench-peers
USER bench
WORKDIR /bench
VOLUME /bench
ENTRYPOINT ["keybench"]
CMD ["--help"]
