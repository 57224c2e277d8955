// The header is C++, too.
#include <consonance.h>

#include <cstdio>
#include <thread>
#include <vector>

int main() {
    cons_id id;
    if (cons_unique_id(&id) != CONS_OK) return 1;
    std::vector<double> sums(2);
    std::vector<std::thread> threads;
    for (int rank = 0; rank < 2; rank++) {
        threads.emplace_back([&, rank] {
            cons_comm comm = 0;
            double value = rank + 1;
            if (cons_comm_init(&comm, &id, 2, rank, nullptr) != CONS_OK) return;
            if (cons_all_reduce(comm, &value, &sums[rank], 1, CONS_F64, CONS_SUM) != CONS_OK) return;
            cons_comm_free(comm);
        });
    }
    for (auto &thread : threads) thread.join();
    if (sums[0] != 3 || sums[1] != 3) return 1;
    std::puts("plus: all right");
    return 0;
}
