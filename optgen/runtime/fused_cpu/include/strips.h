// A loop over the elements of a tile, a few at a time: others are on their way from memory meanwhile,
// and what is not of the type computed in goes through buffers that stay in the nearest cache.
#include "optgen/runtime/fused_cpu/include/outline.h"

namespace optgen {

// Asks memory for what will be read soon. Compilers remove a call of what does nothing but that.
INLINE void ask(const void* at, i64 bytes) {
    for (i64 i = 0; i < bytes; i += 64) __builtin_prefetch(static_cast<const char*>(at) + i);
}

template <class C>
struct Strips {
    const Outline<C>& rule;
    const Subject<C>& tensor;
    const u64 touched;           // the values that the pass reads or writes, a bit each
    const u64 converted, stored; // streams that go through buffers, and back
    const u64 apart;             // those whose rows do not follow one another
    const Tile& tile;

    void run(int k, const Place* at) const {
        const i64 length = converted ? SHORT_SPAN : STRIP, all = tile.columns;
        const i64 together = apart ? 1 : most(1, length / all);
        const i64 gap = tensor.job.columns - all;
        Place seen[MOST_VALUES];
        for (int v = 0; v < rule.values; ++v) seen[v] = at[v];
        i64 element = tile.element;
        for (i64 row = 0; row < tile.rows; row += together) {
            const i64 rows = least(together, tile.rows - row);
            for (i64 column = 0; column < all; column += length) {
                const i64 columns = least(length, all - column), n = rows * columns;
                begin(k, element, n, seen);
                rule.run(false, tensor.given, k, rows, columns, seen);
                end(element, n, seen);
                element += n;
                advance(TENSOR, n, seen);
                advance(COLUMN, columns, seen);
            }
            advance(ROW, rows, seen);
            advance(COLUMN, -all, seen);
            for (u64 streams = apart; streams; streams &= streams - 1) {
                Place& its = seen[__builtin_ctzll(streams)];
                its = its.moved(gap * rule.stored);
            }
            element += apart ? gap : 0;
        }
    }

    char* place(int v, i64 element) const {
        return static_cast<char*>(tensor.address(v)) + element * bytes_of(tensor.type(v));
    }

    void begin(int k, i64 element, i64 n, const Place* seen) const {
        for (u64 streams = rule.steps[k].reads & rule.elements; streams && tensor.job.from_memory;
             streams &= streams - 1) {
            const int v = __builtin_ctzll(streams);
            ask(place(v, element) + AHEAD, n * bytes_of(tensor.type(v)));
        }
        for (u64 streams = converted; streams; streams &= streams - 1) {
            const int v = __builtin_ctzll(streams);
            read<KNOWN>(tensor.type(v), tensor.address(v), element, n, static_cast<C*>(seen[v].at));
        }
    }

    void end(i64 element, i64 n, const Place* seen) const {
        for (u64 streams = converted & stored; streams; streams &= streams - 1) {
            const int v = __builtin_ctzll(streams);
            write<KNOWN>(
                tensor.type(v), static_cast<C*>(seen[v].at), tensor.address(v), element, n);
        }
    }

    void advance(int axes, i64 n, Place* seen) const {
        for (u64 values = touched & ~converted; values; values &= values - 1) {
            const int v = __builtin_ctzll(values);
            if (rule.axes[v] == axes) seen[v] = seen[v].moved(n * rule.bytes(v));
        }
    }
};

}  // namespace optgen
