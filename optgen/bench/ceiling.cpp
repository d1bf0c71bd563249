// Memory roofline of a step: sweeps over the step's streams, with hardly any arithmetic. Words are
// written back as they were read, so the streams may be an optimizer's own tensors of any dtype.
#include <cstdint>
#include <utility>

namespace {

using i64 = std::int64_t;
using u32 = std::uint32_t;

constexpr int MAX_STREAMS = 6; // `_MOST` of ceiling.py

// Sweep over streams of one size. The first `stored` streams are written back.
struct Sweep {
    i64 words, first, elements; // words of a stream; first element and size of its parameter
    i64 read, stored;
    u32* at[MAX_STREAMS];
};

struct Ceiling {
    i64 sweeps, elements; // of the whole list
    const Sweep* sweep;
    u32 zero; // unknown to the compiler, so that it cannot omit stores
    u32 seen; // an output, so that the compiler cannot omit loads
};

// `Threads` of the runtime's tensor_table.h, without `barrier`.
struct Threads {
    int count;
    void (*parallel)(void (*)(void*), void*, unsigned, unsigned);
    int (*id)();
    int (*team)();
};

template <int STORED, int... K, class... Stream>
u32 loop(i64 n, u32 zero, std::integer_sequence<int, K...>, Stream* __restrict... at) {
    u32 sum = 0;
    for (i64 i = 0; i < n; ++i) {
        const u32 seen = (at[i] | ...);
        if constexpr (STORED == 0) sum |= seen;
        ((K < STORED ? void(at[i] ^= seen & zero) : void()), ...);
    }
    return sum;
}

template <int STORED, int... K>
u32 spread(const Sweep& s, i64 low, i64 n, u32 zero, std::integer_sequence<int, K...> places) {
    return loop<STORED>(n, zero, places, (s.at[K] + low)...);
}

template <int READ, int STORED>
u32 streams(const Sweep& s, i64 low, i64 n, u32 zero) {
    return spread<STORED>(s, low, n, zero, std::make_integer_sequence<int, READ>());
}

using Streams = u32 (*)(const Sweep&, i64, i64, u32);

template <int... I>
Streams variant(i64 read, i64 stored, std::integer_sequence<int, I...>) {
    static constexpr Streams variants[] = {
        streams<1 + I / (MAX_STREAMS + 1), I % (MAX_STREAMS + 1)>...};
    return variants[(read - 1) * (MAX_STREAMS + 1) + stored];
}

// Sweeps elements [low, high) of the list: all sweeps of a tensor, then the next tensor, so that
// small tensors stay in the caches.
u32 range(const Ceiling& ceiling, i64 low, i64 high) {
    u32 seen = 0;
    for (i64 i = 0; i < ceiling.sweeps; ++i) {
        const Sweep& s = ceiling.sweep[i];
        const i64 begin = low > s.first ? low - s.first : 0;
        const i64 end = high - s.first < s.elements ? high - s.first : s.elements;
        if (begin >= end) continue;
        const i64 from = s.words * begin / s.elements, to = s.words * end / s.elements;
        const std::make_integer_sequence<int, MAX_STREAMS*(MAX_STREAMS + 1)> all;
        seen |= variant(s.read, s.stored, all)(s, from, to - from, ceiling.zero);
    }
    return seen;
}

struct Region {
    Ceiling& ceiling;
    const Threads& threads;

    static void work(void* at) {
        const Region& region = *static_cast<Region*>(at);
        const i64 n = region.ceiling.elements;
        const i64 id = region.threads.id(), team = region.threads.team();
        const u32 seen = range(region.ceiling, n * id / team, n * (id + 1) / team);
        __atomic_or_fetch(&region.ceiling.seen, seen, __ATOMIC_RELAXED);
    }
};

}  // namespace

extern "C" void optgen_ceiling(Ceiling* ceiling, const Threads* threads) {
    Region region{*ceiling, *threads};
    if (threads->count > 1)
        threads->parallel(Region::work, &region, unsigned(threads->count), 0);
    else
        ceiling->seen |= range(*ceiling, 0, ceiling->elements);
}
