// A stock of goods: threads that sell from it at once, each sale a transaction over two families.
// Usage: inventory DIRECTORY

#include <kingtide.hpp>

#include <iostream>
#include <thread>

namespace {

uint64_t number(std::string_view text) { return text.empty() ? 0 : std::stoull(std::string(text)); }

// Sells one piece. Returns whether there was one.
kingtide::Result<bool> sell(kingtide::Db &db, const kingtide::Family &stock, const kingtide::Family &sales,
                            std::string_view good, unsigned buyer) {
    return db.transact([&](kingtide::Transaction &txn) -> kingtide::Result<bool> {
        auto pieces = txn.get(stock, good);
        if (!pieces) return pieces.error();
        uint64_t left = *pieces ? number(**pieces) : 0;
        if (left == 0) return false;
        if (auto done = txn.put(stock, good, std::to_string(left - 1)); !done) return done.error();
        std::string sale = std::string(good) + "/" + std::to_string(left);
        if (auto done = txn.put(sales, sale, "buyer " + std::to_string(buyer)); !done) return done.error();
        return true;
    });
}

}  // namespace

int main(int argc, char **argv) try {
    if (argc != 2) {
        std::cerr << "usage: inventory DIRECTORY\n";
        return 2;
    }
    auto db = kingtide::Db::open(argv[1]).value();
    auto stock = db.create_family("stock").value();
    auto sales = db.create_family("sales").value();

    kingtide::Batch goods;
    goods.put(stock, "chart", "40").value();
    goods.put(stock, "compass", "25").value();
    db.write(goods).value();

    std::vector<std::thread> buyers;
    for (unsigned buyer = 0; buyer < 4; buyer++) {
        buyers.emplace_back([&, buyer] {
            for (const char *good : {"chart", "compass"}) {
                while (sell(db, stock, sales, good, buyer).value()) {
                }
            }
        });
    }
    for (std::thread &buyer : buyers) buyer.join();

    for (const kingtide::Entry &entry : stock.scan().value().throwing()) {
        size_t sold = 0;
        for (const kingtide::Entry &sale : sales.prefix(std::string(entry.key) + "/").value().keys_only().throwing()) {
            sold += !sale.key.empty();
        }
        std::cout << entry.key << ": " << sold << " sold, " << entry.value << " left\n";
    }
    db.close().value();
    return 0;
} catch (const kingtide::Exception &e) {
    std::cerr << e.error() << "\n";
    return 1;
}
