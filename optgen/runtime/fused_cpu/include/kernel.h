// What every fused C++ kernel of an elementwise rule shares: one sweep over all tensors of a table.
// The runtime pastes this text, and that of the headers it includes, over the #include line when it
// builds a kernel. It includes nothing else, so that a build takes a few tenths of a second, and
// nothing of it depends on a version of torch.

// Rows that sparse gradients touch lie anywhere in memory: what -O1 leaves undone costs them nothing
// that could be seen, and is more than half of a build.
#if defined(OPTGEN_ROWS) && !defined(__clang__)
#pragma GCC optimize("O1", "tree-vectorize", "vect-cost-model=dynamic")
#endif

#include "optgen/runtime/fused_cpu/include/halves.h"
#include "optgen/runtime/fused_cpu/include/program.h"

namespace optgen {

// Streams of several types, and gradients to be unscaled, go through buffers of this many elements.
constexpr i64 TILE = 512;

// Bit s: stream s is only read. Gradients are, and what a rule names in READ.
template <class R, class = void>
constexpr u32 ONLY_READ = 1 << 1;
template <class R>
constexpr u32 ONLY_READ<R, decltype(void(R::READ))> = R::READ;
template <class R>
constexpr bool is_written(int s) { return !(ONLY_READ<R> >> s & 1); }

// A rule's update of n elements. If they do not fill the last vectors, these are filled in a copy.
template <class R, class S>
void update(
    const typename R::Hypers& hypers, const typename R::Scalars& scalars, unsigned fresh, i64 n,
    S* const* streams) {
    constexpr i64 lanes = LANES<Computed<S>>;
    const i64 rest = n % lanes, whole = n - rest;
    if (whole) R::update(hypers, scalars, fresh, whole, streams);
    if (!rest) return;
    S copy[R::STREAMS][lanes] = {};
    S* copies[R::STREAMS];
    for (int s = 0; s < R::STREAMS; ++s) {
        copies[s] = streams[s] ? copy[s] : nullptr;
        if (streams[s]) __builtin_memcpy(copy[s], streams[s] + whole, u64(rest) * sizeof(S));
    }
    R::update(hypers, scalars, fresh, lanes, copies);
    for (int s = 0; s < R::STREAMS; ++s)
        if (is_written<R>(s) && streams[s])
            __builtin_memcpy(streams[s] + whole, copy[s], u64(rest) * sizeof(S));
}

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

    i64 length() const { return start[table.tensors]; }

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
            update<R>(hypers(t), scalars(t), table.fresh[t], m, streams);
            for (int s = 0; s < STREAMS; ++s)
                if (is_written<R>(s) && streams[s] == buffer[s])
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

    // Streams of one type are updated where they lie.
    template <class S>
    void span(i64 t, i64 first, i64 n) const {
        S* streams[STREAMS];
        for (int s = 0; s < STREAMS; ++s)
            streams[s] = type(s, t) ? static_cast<S*>(address(s, t)) + first : nullptr;
        update<R>(hypers(t), scalars(t), table.fresh[t], n, streams);
    }

    // The type of all streams of a tensor; ABSENT if they have several or must go through buffers.
    u32 only_type(i64 t) const {
        for (int s = 1; s < STREAMS; ++s)
            if (type(s, t) != type(0, t) && type(s, t) != ABSENT) return ABSENT;
        return table.grad_scale ? ABSENT : type(0, t);
    }

    void elements(i64 t, i64 first, i64 n) const {
        switch (only_type(t)) {
            case FLOAT32: return span<float>(t, first, n);
            case FLOAT64: return span<double>(t, first, n);
            case BFLOAT16: return span<bfloat16>(t, first, n);
            case FLOAT16: return span<float16>(t, first, n);
        }
        if (this->in_double(t)) tiles<double>(t, first, n);
        else tiles<float>(t, first, n);
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
            elements(t, first, last - first);
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
        kernel.range(0, kernel.length());
}

}  // namespace optgen
