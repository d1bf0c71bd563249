// Software prefetching: distances, and the lengths of loops that prefetch.
#include "optgen/runtime/fused_cpu/include/storage_rounding.h"

namespace optgen {

// Prefetch distance, in elements, of loads in a loop over n elements of dtype S. The CPU's
// prefetchers stop at the end of a page, and loops over 16-bit dtypes reach the end soonest. Loops
// over float32 do not prefetch at their loads, because g++ does not vectorize loops that do. Short
// loops do not prefetch either: they would fetch what lies behind their tensors.
template <class S>
INLINE i64 prefetch_distance(i64 n) { return LANES<ComputeType<S>> > 1 && n >= 8192 ? 1024 : 0; }

// Length of the strips in which a long loop over float32 prefetches: cache lines of all streams in
// turn, PREFETCH_AHEAD elements ahead. Returns n if the loop does not prefetch: the caches may hold
// a shorter loop's tensors, and loops over 16-bit dtypes prefetch at their loads.
constexpr i64 PREFETCHED_LOOP = 1 << 21, PREFETCH_STRIP = 256, PREFETCH_AHEAD = 384; // elements
template <class S>
INLINE i64 prefetch_strip(i64 n) { return n; }
template <>
INLINE i64 prefetch_strip<float>(i64 n) { return n < PREFETCHED_LOOP ? n : PREFETCH_STRIP; }
template <class S>
INLINE void prefetch(const S* at) { __builtin_prefetch(at + PREFETCH_AHEAD); }

// Prefetches a range of bytes. Inlined, because compilers remove calls that only prefetch.
INLINE void prefetch_range(const void* at, i64 bytes) {
    for (i64 i = 0; i < bytes; i += 64) __builtin_prefetch(static_cast<const char*>(at) + i);
}

}  // namespace optgen
