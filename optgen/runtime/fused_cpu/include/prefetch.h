// Software prefetching: distances, and the lengths of loops that prefetch.
#include "optgen/runtime/fused_cpu/include/storage_rounding.h"

namespace optgen {

// Prefetch distance, in elements, of loads in a loop over n elements of dtype S; 0 for none. Only
// long loops over 16-bit dtypes prefetch at their loads: the CPU's own prefetchers stop at the end
// of each page. A short loop would mostly fetch memory beyond its tensors. In loops over float32,
// such a prefetch would keep g++ from vectorizing.
template <class S>
INLINE i64 prefetch_distance(i64 n) { return LANES<ComputeType<S>> > 1 && n >= 8192 ? 1024 : 0; }

// A long loop over float32 runs strip by strip. Before each strip it prefetches the cache lines of
// all streams that lie PREFETCH_AHEAD elements further on. A shorter loop has no strips: its
// tensors may be in the caches. Loops over 16-bit dtypes have no strips, because they prefetch at
// their loads. Returns the length of a strip, which is n for a loop without strips.
constexpr i64 MIN_PREFETCHED_LOOP = 1 << 21, PREFETCH_STRIP = 256, PREFETCH_AHEAD = 384; // elements
template <class S>
INLINE i64 prefetch_strip(i64 n) { return n; }
template <>
INLINE i64 prefetch_strip<float>(i64 n) { return n < MIN_PREFETCHED_LOOP ? n : PREFETCH_STRIP; }
template <class S>
INLINE void prefetch(const S* at) { __builtin_prefetch(at + PREFETCH_AHEAD); }

// Prefetches a range of bytes. Inlined: compilers remove a call of a function that only prefetches.
INLINE void prefetch_range(const void* at, i64 bytes) {
    for (i64 i = 0; i < bytes; i += 64) __builtin_prefetch(static_cast<const char*>(at) + i);
}

}  // namespace optgen
