// What every fused C++ kernel shares: the table of tensors, scalar streams, threads.
// The runtime pastes this text, and that of the headers it includes, over the #include line when it
// builds a kernel. It includes nothing else, so that a build takes a few tenths of a second, and
// nothing of it depends on a version of torch.
#include "optgen/runtime/fused_cpu/words.h"

namespace optgen {

// Tensors of all groups, in the order of the optimizer. Streams are the parameter, its gradient,
// the rule's states of the parameter's shape, then the scalar ones: step and scalar states.
// A tensor without a gradient has type ABSENT there and is left alone.
struct Table {
    i64 tensors;
    void* const* address;       // [stream][tensor]
    const i64* elements;        // [tensor]
    const u64* types;           // [tensor], four bits a stream, the parameter's lowest
    const int* group;           // [tensor]
    const unsigned char* fresh; // [tensor], bit k: the rule's k-th fresh key was made in this step
    const double* hypers;       // [group][hyperparameter]
    const double* grad_scale;   // what gradients are divided by, or null
};

// libgomp as found in the process (torch's own); all null where it has none.
struct Threads {
    int count;
    void (*parallel)(void (*)(void*), void*, unsigned, unsigned);
    int (*id)();
    int (*team)();
};

template <class C>
constexpr u32 TYPE = sizeof(C) == 8 ? FLOAT64 : FLOAT32;

// Streams of other types, and gradients to be unscaled, go through buffers of this many elements.
constexpr i64 TILE = 512;

// Below this many bytes of traffic a second thread costs more than it brings.
constexpr i64 SERIAL = 16 << 20;

template <class T>
struct Buffer {
    T* data;

    explicit Buffer(i64 n) : data(static_cast<T*>(__builtin_malloc(u64(n) * sizeof(T)))) {
        if (!data) __builtin_trap();
    }
    Buffer(const Buffer&) = delete;
    ~Buffer() { __builtin_free(data); }
    T& operator[](i64 i) const { return data[i]; }

    void grow(i64 n) {
        data = static_cast<T*>(__builtin_realloc(data, u64(n) * sizeof(T)));
        if (!data) __builtin_trap();
    }
};

template <class R>
struct Kernel {
    using Hypers = typename R::Hypers;
    using Scalars = typename R::Scalars;
    static constexpr int STREAMS = R::STREAMS, CELLS = R::CELLS;
    static_assert(STREAMS + CELLS <= 16, "four bits a stream in 64");

    const Table& table;
    Buffer<i64> start;       // where each tensor begins in the list of all elements
    Buffer<int> run;         // each tensor's run of the scalar program
    Buffer<Scalars> results; // of each run
    i64 traffic;             // bytes to be moved

    explicit Kernel(const Table& given_table)
        : table(given_table), start(table.tensors + 1), run(table.tensors), results(64) {
        prepare();
    }

    i64 elements() const { return start[table.tensors]; }

    const Hypers& hypers(i64 tensor) const {
        return reinterpret_cast<const Hypers*>(table.hypers)[table.group[tensor]];
    }

    const Scalars& scalars(i64 tensor) const {
        return results[run[tensor]];
    }

    void* address(int stream, i64 tensor) const {
        return table.address[stream * table.tensors + tensor];
    }

    // Runs the scalar program of every tensor, and advances its step and scalar states. Neighbours
    // that agree in everything the program reads share one run.
    void prepare() {
        Scalar old[CELLS + 1] = {}, cells[CELLS + 1] = {};
        i64 at = 0, last = -1, runs = 0, room = 64;
        traffic = 0;
        for (i64 t = 0; t < table.tensors; ++t) {
            const u64 types = table.types[t];
            start[t] = at;
            if (type_of(types, 1) == ABSENT) continue;
            at += (table.elements[t] + 63) & ~63LL;
            for (int s = 0; s < STREAMS; ++s)
                traffic += table.elements[t] * bytes_of(type_of(types, s));

            bool same = last >= 0 && table.group[t] == table.group[last]
                && table.fresh[t] == table.fresh[last];
            for (int c = 0; c < CELLS; ++c) {
                Scalar cell{0, type_of(types, STREAMS + c)};
                if (cell.type) read(cell.type, address(STREAMS + c, t), 0, 1, &cell.value);
                same = same && cell == old[c];
                old[c] = cell;
            }
            if (!same) {
                for (int c = 0; c < CELLS; ++c) cells[c] = old[c];
                if (R::HAS_STEP) cells[0].value = cells[0].rounded(cells[0].value + 1);
                if (runs == room) results.grow(room *= 2);
                results[runs++] = R::program(hypers(t), cells, table.fresh[t]);
            }
            for (int c = 0; c < CELLS; ++c)
                if (cells[c].type)
                    write(cells[c].type, &cells[c].value, address(STREAMS + c, t), 0, 1);
            run[t] = int(runs - 1);
            last = t;
        }
        start[table.tensors] = at;
    }

    template <class C>
    void tiles(i64 t, i64 first, i64 n) const {
        C buffer[STREAMS][TILE];
        for (const i64 end = first + n; first < end; first += TILE) {
            const i64 m = end - first < TILE ? end - first : TILE;
            C* streams[STREAMS];
            for (int s = 0; s < STREAMS; ++s) {
                const u32 type = type_of(table.types[t], s);
                if (type == ABSENT) streams[s] = nullptr;
                else if (type == TYPE<C>) streams[s] = static_cast<C*>(address(s, t)) + first;
                else read(type, address(s, t), first, m, streams[s] = buffer[s]);
            }
            if (table.grad_scale) unscale(t, first, m, streams[1], buffer[1]);
            R::template update<C>(hypers(t), scalars(t), table.fresh[t], m, streams);
            for (int s = 0; s < STREAMS; ++s)
                if (s != 1 && streams[s] == buffer[s])
                    write(type_of(table.types[t], s), streams[s], address(s, t), first, m);
        }
    }

    // Gradients are unscaled in place, as torch's fused kernels do.
    template <class C>
    void unscale(i64 t, i64 first, i64 n, C* grads, const C* buffer) const {
        const C scale = C(*table.grad_scale);
        for (i64 i = 0; i < n; ++i) grads[i] /= scale;
        if (grads == buffer) write(type_of(table.types[t], 1), grads, address(1, t), first, n);
    }

    // Streams that are all of the type computed in are updated where they lie.
    template <class C>
    void span(i64 t, i64 first, i64 n) const {
        C* streams[STREAMS];
        for (int s = 0; s < STREAMS; ++s) {
            const u32 type = type_of(table.types[t], s);
            if (type != TYPE<C> && type != ABSENT) return tiles<C>(t, first, n);
            streams[s] = type ? static_cast<C*>(address(s, t)) + first : nullptr;
        }
        if (table.grad_scale) return tiles<C>(t, first, n);
        R::template update<C>(hypers(t), scalars(t), table.fresh[t], n, streams);
    }

    bool in_double(i64 t) const {
        for (int s = 0; s < STREAMS; ++s)
            if (type_of(table.types[t], s) == FLOAT64) return true;
        return false;
    }

    // Updates what lies in [low, high) of the list of elements.
    void range(i64 low, i64 high) const {
        i64 t = 0;
        for (i64 end = table.tensors; t + 1 < end;) {
            const i64 middle = (t + end) / 2;
            (start[middle] <= low ? t : end) = middle;
        }
        for (; t < table.tensors && start[t] < high; ++t) {
            const i64 first = low > start[t] ? low - start[t] : 0;
            const i64 last = high - start[t] < table.elements[t] ? high - start[t]
                                                                       : table.elements[t];
            if (type_of(table.types[t], 1) == ABSENT || first >= last) continue;
            if (in_double(t)) span<double>(t, first, last - first);
            else span<float>(t, first, last - first);
        }
    }
};

template <class R>
struct Region {
    const Kernel<R>& kernel;
    const Threads& threads;

    static void work(void* at) {
        const Region& region = *static_cast<const Region*>(at);
        const i64 blocks = region.kernel.start[region.kernel.table.tensors] / 64;
        const i64 id = region.threads.id(), team = region.threads.team();
        region.kernel.range(blocks * id / team * 64, blocks * (id + 1) / team * 64);
    }
};

// One step of all tensors of the table.
template <class R>
void step(const Table& table, const Threads& threads) {
    const Kernel<R> kernel(table);
    Region<R> region{kernel, threads};
    if (threads.count > 1 && kernel.traffic > SERIAL)
        threads.parallel(Region<R>::work, &region, unsigned(threads.count), 0);
    else
        kernel.range(0, kernel.elements());
}

}  // namespace optgen
