// The memory limit (roofline): loops over the streams of a step, with hardly any arithmetic. Values
// are written back unchanged, so the streams may be the tensors of an optimizer in use. They may
// have any dtype.
#include <cstdint>
#include <utility>

namespace {

using i64 = std::int64_t;
using u32 = std::uint32_t;

constexpr int MAX_STREAMS = 6; // of one loop; the same number as in roofline.py

// Streams of one size that a sweep reads together. The first `stored_count` are written back.
struct Sweep {
    i64 word_count; // 32-bit words of a stream
    i64 first_element, element_count; // of the parameter, counted over the whole list
    i64 read_count, stored_count; // numbers of streams
    u32* streams[MAX_STREAMS];
};

struct Roofline {
    i64 sweep_count, element_count; // of the whole list
    const Sweep* sweeps;
    u32 zero; // always 0, which the compiler cannot know
    u32 seen; // result of all reads, so that the compiler cannot drop them
};

// Functions of the process's libgomp, with the same fields as in the runtime's kernels.
struct Threads {
    int count;
    void (*parallel)(void (*)(void*), void*, unsigned, unsigned);
    int (*id)();
    int (*team_size)();
};

// Reads all streams, and writes the first STORED back: `seen & zero` is 0, so no value changes.
template <int STORED, int... K, class... Stream>
u32 loop(i64 n, u32 zero, std::integer_sequence<int, K...>, Stream* __restrict... streams) {
    u32 all_seen = 0;
    for (i64 i = 0; i < n; ++i) {
        const u32 seen = (streams[i] | ...);
        if constexpr (STORED == 0) all_seen |= seen;
        ((K < STORED ? void(streams[i] ^= seen & zero) : void()), ...);
    }
    return all_seen;
}

template <int STORED, int... K>
u32 loop_from(
    const Sweep& sweep, i64 low, i64 n, u32 zero, std::integer_sequence<int, K...> indices) {
    return loop<STORED>(n, zero, indices, (sweep.streams[K] + low)...);
}

template <int READ, int STORED>
u32 loop_over(const Sweep& sweep, i64 low, i64 n, u32 zero) {
    return loop_from<STORED>(sweep, low, n, zero, std::make_integer_sequence<int, READ>());
}

using Loop = u32 (*)(const Sweep&, i64, i64, u32);

// Returns the loop over `read_count` streams, of which the first `stored_count` are written back.
template <int... I>
Loop select_loop(i64 read_count, i64 stored_count, std::integer_sequence<int, I...>) {
    static constexpr Loop loops[] = {loop_over<1 + I / (MAX_STREAMS + 1), I % (MAX_STREAMS + 1)>...};
    return loops[(read_count - 1) * (MAX_STREAMS + 1) + stored_count];
}

// Goes over the elements [low, high) of the list: all sweeps of a tensor, then the next tensor, so
// that small tensors stay in the caches.
u32 run_sweeps(const Roofline& roofline, i64 low, i64 high) {
    u32 seen = 0;
    for (i64 i = 0; i < roofline.sweep_count; ++i) {
        const Sweep& sweep = roofline.sweeps[i];
        const i64 count = sweep.element_count;
        const i64 begin = low > sweep.first_element ? low - sweep.first_element : 0;
        const i64 end = high - sweep.first_element < count ? high - sweep.first_element : count;
        if (begin >= end) continue;
        const i64 from = sweep.word_count * begin / count, to = sweep.word_count * end / count;
        const std::make_integer_sequence<int, MAX_STREAMS*(MAX_STREAMS + 1)> loop_indices;
        const Loop loop = select_loop(sweep.read_count, sweep.stored_count, loop_indices);
        seen |= loop(sweep, from, to - from, roofline.zero);
    }
    return seen;
}

struct Region {
    Roofline& roofline;
    const Threads& threads;

    static void run(void* pointer) {
        const Region& region = *static_cast<Region*>(pointer);
        const i64 n = region.roofline.element_count;
        const i64 id = region.threads.id(), team_size = region.threads.team_size();
        const u32 seen = run_sweeps(region.roofline, n * id / team_size, n * (id + 1) / team_size);
        __atomic_or_fetch(&region.roofline.seen, seen, __ATOMIC_RELAXED);
    }
};

}  // namespace

extern "C" void optgen_roofline(Roofline* roofline, const Threads* threads) {
    Region region{*roofline, *threads};
    if (threads->count > 1)
        threads->parallel(Region::run, &region, unsigned(threads->count), 0);
    else
        roofline->seen |= run_sweeps(*roofline, 0, roofline->element_count);
}
