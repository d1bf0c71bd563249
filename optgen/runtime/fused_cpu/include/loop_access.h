// Loads, stores and sums in loops over elements, for one lane or several. Streams have the storage
// dtype S. All other values have the compute dtype, ComputeScalar<S>.
#include "optgen/runtime/fused_cpu/include/half_precision.h"

namespace optgen {

// Untyped address of a value's numbers: a stream in its storage dtype, or values that are computed.
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

// Lane indices for shuffles: memory order, and the orders to and from deinterleaved pairs.
constexpr struct LaneOrders {
    int all[VECTOR_LANES], even[VECTOR_LANES], odd[VECTOR_LANES];
    int lower[VECTOR_LANES], upper[VECTOR_LANES];

    constexpr LaneOrders() : all(), even(), odd(), lower(), upper() {
        for (int i = 0; i < VECTOR_LANES; ++i) {
            all[i] = i, even[i] = 2 * i, odd[i] = 2 * i + 1;
            lower[i] = i / 2 + i % 2 * VECTOR_LANES, upper[i] = lower[i] + VECTOR_LANES / 2;
        }
    }
} LANE_ORDERS;

INLINE VectorMask lane_indices(const int* numbers) {
    VectorMask found;
    __builtin_memcpy(&found, numbers, sizeof found);
    return found;
}

// Picks lanes from two vectors side by side.
INLINE Vector shuffled(Vector x, Vector y, VectorMask lanes) {
#ifdef __clang__
    for (int i = 0; i < VECTOR_LANES; ++i)
        lanes[i] = bit_cast<int>(
            lanes[i] < VECTOR_LANES ? x[lanes[i]] : y[lanes[i] - VECTOR_LANES]);
    return bit_cast<Vector>(lanes);
#else
    return __builtin_shuffle(x, y, lanes);
#endif
}

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
// and the next ones are loaded. Otherwise the number at `index` goes to all lanes.
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

INLINE VectorPair& operator+=(VectorPair& x, VectorPair y) { return x = x + y; }
#pragma omp declare reduction(+ : VectorPair : omp_out += omp_in) \
    initializer(omp_priv = VectorPair(0))

// Returns the sum of all lanes of a loop's accumulator.
INLINE float lane_sum(float x) { return x; }
INLINE double lane_sum(double x) { return x; }
INLINE float lane_sum(VectorPair x) {
    Vector sum = x.a + x.b;
    for (int half = VECTOR_LANES / 2; half; half /= 2)
        sum += shuffled(sum, sum, lane_indices(LANE_ORDERS.all) + half);
    return sum[0];
}

}  // namespace optgen
