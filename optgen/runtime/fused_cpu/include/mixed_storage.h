// Streams of several dtypes, which one loop converts in registers: parameters of 16 bits with
// states of float32, and the like. The dtype of a stream is known only at run time. Branches on the
// dtype are the same for all elements, so the CPU predicts them.
#include "optgen/runtime/fused_cpu/include/half_precision.h"

namespace optgen {

// Stands for the storage dtype in a loop whose streams have several: float32, bfloat16, float16.
struct Mixed;

// Position in a stream whose dtype is known only at run time.
struct MixedStream {
    char* address = nullptr;
    u32 dtype = ABSENT;

    explicit operator bool() const { return address; }
    INLINE MixedStream operator+(i64 elements) const {
        return {address + elements * itemsize(dtype), dtype};
    }
};

// The elements of a stream of storage dtype S, as a loop gets them.
template <class S>
struct StreamOf { using Type = S* __restrict; };
template <>
struct StreamOf<Mixed> { using Type = MixedStream; };
template <>
struct StreamOf<const Mixed> { using Type = MixedStream; };
template <class S>
using Stream = typename StreamOf<S>::Type;

// Returns memory as a stream with the dtype of stream `like`; null if `like` is absent.
template <class S>
INLINE S* stream_at(void* memory, const S* like) {
    return like ? static_cast<S*>(memory) : nullptr;
}
INLINE MixedStream stream_at(void* memory, MixedStream like) {
    return {like ? static_cast<char*>(memory) : nullptr, like.dtype};
}

template <class S>
INLINE void copy_elements(S* to, const S* from, i64 n) {
    __builtin_memcpy(to, from, u64(n) * sizeof(S));
}
INLINE void copy_elements(MixedStream to, MixedStream from, i64 n) {
    __builtin_memcpy(to.address, from.address, u64(n * itemsize(from.dtype)));
}

// Vectors of mixed streams hold elements in memory order, because vectors of float32 streams do.
template <>
constexpr bool DEINTERLEAVED<Mixed> = false;

// An element of float32 takes twice the memory, so the distance has half as many elements.
template <>
INLINE i64 prefetch_distance<Mixed>(i64 n) { return n >= 8192 ? 512 : 0; }

INLINE VectorPair load(MixedStream from, i64 ahead) {
    __builtin_prefetch((from + ahead).address);
    if (from.dtype == BFLOAT16) return load_in_order(reinterpret_cast<bfloat16*>(from.address));
    if (from.dtype == FLOAT16) return load_in_order(reinterpret_cast<float16*>(from.address));
    __builtin_prefetch((from + ahead + VECTOR_LANES).address);
    VectorPair x;
    __builtin_memcpy(&x, from.address, sizeof x);
    return x;
}
INLINE void store(MixedStream to, VectorPair x) {
    if (to.dtype == BFLOAT16) return store_in_order(reinterpret_cast<bfloat16*>(to.address), x);
    if (to.dtype == FLOAT16) return store_in_order(reinterpret_cast<float16*>(to.address), x);
    __builtin_memcpy(to.address, &x, sizeof x);
}
INLINE void prefetch(MixedStream at) { __builtin_prefetch((at + PREFETCH_AHEAD).address); }

}  // namespace optgen
