// Loads and stores in loops over elements, for one lane or several. Streams have the storage dtype
// S. All other values have the compute dtype, ComputeScalar<S>.
#include "optgen/runtime/fused_cpu/include/half_precision.h"
#include "optgen/runtime/fused_cpu/include/lane_shuffles.h"

namespace optgen {

// Untyped address of a value's numbers: a stream in its storage dtype, or computed numbers.
struct Pointer {
    void* at;

    template <class T>
    INLINE operator T*() const { return static_cast<T*>(at); }
    Pointer plus(i64 bytes) const { return {static_cast<char*>(at) + bytes}; }
};

template <class C>
struct ComputeScalarOf { using Type = C; };
template <>
struct ComputeScalarOf<VectorPair> { using Type = float; };
template <class S>
using ComputeScalar = typename ComputeScalarOf<ComputeType<S>>::Type;

template <class S>
INLINE VectorPair load_lanes(const S* from) { return load(from, 0); }

// Loads float32 numbers in the lane order of a stream of S.
template <class S>
INLINE VectorPair load_lanes(const float* from) {
    VectorPair x;
    __builtin_memcpy(&x.a, from, VECTOR_BYTES);
    __builtin_memcpy(&x.b, from + VECTOR_LANES, VECTOR_BYTES);
    if (!DEINTERLEAVED<S>) return x;
    return {shuffled(x.a, x.b, lane_indices(LANE_ORDERS.even)),
            shuffled(x.a, x.b, lane_indices(LANE_ORDERS.odd))};
}

template <class S>
INLINE void store_lanes(S* to, VectorPair x) { store(to, x); }

template <class S>
INLINE void store_lanes(float* to, VectorPair x) {
    if (DEINTERLEAVED<S>)
        x = {shuffled(x.a, x.b, lane_indices(LANE_ORDERS.lower)),
             shuffled(x.a, x.b, lane_indices(LANE_ORDERS.upper))};
    __builtin_memcpy(to, &x.a, VECTOR_BYTES);
    __builtin_memcpy(to + VECTOR_LANES, &x.b, VECTOR_BYTES);
}

// Loads as many numbers of an array as C has lanes.
template <class S, class C, class T>
INLINE C load_as(const T* from) {
    if constexpr (LANES<C> > 1) return load_lanes<S>(from);
    else {
        C x = decode<T, C>(*from);
        // The rest of a row does not fill a vector: a loop over it must not be vectorized.
        if constexpr (LANES<ComputeType<S>> > 1) __asm__("" : "+m"(x));
        return x;
    }
}

// Loads a value that several elements share. EXPANDED: the array has a number for every element,
// and the numbers from `next` on are loaded. Otherwise the number at `index` goes to all lanes.
template <class S, class C, bool EXPANDED, class T>
INLINE C broadcast(const T* from, i64 next, i64 index) {
    if constexpr (EXPANDED) return load_as<S, C>(from + next);
    else return C(from[index]);
}

template <class S, class C, class T>
INLINE void store_as(T* to, C x) {
    if constexpr (LANES<C> > 1) store_lanes<S>(to, x);
    else *to = encode<T, C>(x);
}

template <class S, class C>
INLINE void add_to(ComputeScalar<S>* to, C x) { store_as<S>(to, C(load_as<S, C>(to) + x)); }

}  // namespace optgen
