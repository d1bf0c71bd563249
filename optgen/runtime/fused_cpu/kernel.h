// What every fused C++ kernel of an elementwise rule shares: one sweep over all tensors of a table.
// The runtime pastes this text, and that of the headers it includes, over the #include line when it
// builds a kernel. It includes nothing else, so that a build takes a few tenths of a second, and
// nothing of it depends on a version of torch.
#include "optgen/runtime/fused_cpu/program.h"

namespace optgen {

// Streams of other types, and gradients to be unscaled, go through buffers of this many elements.
constexpr i64 TILE = 512;

template <class R>
struct Kernel : Program<R> {
    using Program<R>::STREAMS, Program<R>::table, Program<R>::run, Program<R>::address;
    using Program<R>::hypers, Program<R>::scalars, Program<R>::type;

    Buffer<i64> start; // where each tensor begins in the list of all elements
    i64 traffic = 0;   // bytes to be moved

    explicit Kernel(const Table& given_table) : Program<R>(given_table), start(table.tensors + 1) {
        i64 at = 0;
        for (i64 t = 0; t < table.tensors; ++t) {
            start[t] = at;
            if (run[t] < 0) continue;
            at += (table.elements[t] + 63) & ~63LL;
            for (int s = 0; s < STREAMS; ++s) traffic += table.elements[t] * bytes_of(type(s, t));
        }
        start[table.tensors] = at;
    }

    i64 elements() const { return start[table.tensors]; }

    template <class C>
    void tiles(i64 t, i64 first, i64 n) const {
        C buffer[STREAMS][TILE];
        for (const i64 end = first + n; first < end; first += TILE) {
            const i64 m = end - first < TILE ? end - first : TILE;
            C* streams[STREAMS];
            for (int s = 0; s < STREAMS; ++s) {
                const u32 stored = type(s, t);
                if (stored == ABSENT) streams[s] = nullptr;
                else if (stored == TYPE<C>) streams[s] = static_cast<C*>(address(s, t)) + first;
                else read(stored, address(s, t), first, m, streams[s] = buffer[s]);
            }
            if (table.grad_scale) unscale(t, first, m, streams[1], buffer[1]);
            R::template update<C>(hypers(t), scalars(t), table.fresh[t], m, streams);
            for (int s = 0; s < STREAMS; ++s)
                if (s != 1 && streams[s] == buffer[s])
                    write(type(s, t), streams[s], address(s, t), first, m);
        }
    }

    // Gradients are unscaled in place, as torch's fused kernels do.
    template <class C>
    void unscale(i64 t, i64 first, i64 n, C* grads, const C* buffer) const {
        const C scale = C(*table.grad_scale);
        for (i64 i = 0; i < n; ++i) grads[i] /= scale;
        if (grads == buffer) write(type(1, t), grads, address(1, t), first, n);
    }

    // Streams that are all of the type computed in are updated where they lie.
    template <class C>
    void span(i64 t, i64 first, i64 n) const {
        C* streams[STREAMS];
        for (int s = 0; s < STREAMS; ++s) {
            const u32 stored = type(s, t);
            if (stored != TYPE<C> && stored != ABSENT) return tiles<C>(t, first, n);
            streams[s] = stored ? static_cast<C*>(address(s, t)) + first : nullptr;
        }
        if (table.grad_scale) return tiles<C>(t, first, n);
        R::template update<C>(hypers(t), scalars(t), table.fresh[t], n, streams);
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
            if (run[t] < 0 || first >= last) continue;
            if (this->in_double(t)) span<double>(t, first, last - first);
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
