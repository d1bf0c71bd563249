// Random numbers from counters: Threefry-2x32 with 13 rounds (Salmon et al., "Parallel random
// numbers: as easy as 1, 2, 3", SC 2011). It adds, rotates and combines words of 32 bits, so loops
// with it vectorize on every CPU. A block has two words: one for an even place, and one for the odd
// place after it.
#include "optgen/runtime/fused_cpu/include/delayed_store.h"

namespace optgen {

struct RandomKey {
    u32 words[3]; // the key schedule: the third word is made of the other two
    u32 stream;

    RandomKey(double seed, double given_stream, double step, u32 call)
        : words{whole(seed) | call << 24, whole(step), 0}, stream(whole(given_stream) << 8) {
        words[2] = words[0] ^ words[1] ^ 0x1bd11bda;
    }
    static u32 whole(double x) { return x == x ? u32(i64(x)) : 0; } // an infinite seed gives NaN
};

template <int DISTANCE, class U>
INLINE void mix(U& x, U& y) {
    x += y;
    y = (y << DISTANCE | y >> (32 - DISTANCE)) ^ x;
}

// Turns a counter into the two words of its block; U is a word, or a vector of words.
template <class U>
INLINE void threefry(const RandomKey& key, U& x, U& y) {
    const u32 k0 = key.words[0], k1 = key.words[1], k2 = key.words[2];
    x += k0, y += k1;
    mix<13>(x, y), mix<15>(x, y), mix<26>(x, y), mix<6>(x, y);
    x += k1, y += k2 + 1;
    mix<17>(x, y), mix<29>(x, y), mix<16>(x, y), mix<24>(x, y);
    x += k2, y += k0 + 2;
    mix<13>(x, y), mix<15>(x, y), mix<26>(x, y), mix<6>(x, y);
    x += k0, y += k1 + 3;
    mix<17>(x, y);
}

// Returns 0, 1, 2, ...
INLINE VectorBits lane_numbers() {
    VectorBits found;
    for (int i = 0; i < VECTOR_LANES; ++i) found[i] = u32(i);
    return found;
}

// Returns numbers in [0, 1), multiples of 2**-24.
INLINE Vector unit_interval(VectorBits words) {
    return __builtin_convertvector(bit_cast<VectorMask>(words >> 8), Vector) * 0x1p-24f;
}

// Returns the numbers of the even places from `place` on, and of the odd places between them.
// `place` is even, and all places lie within an aligned range of 2**33.
INLINE VectorPair random_pair(const RandomKey& key, i64 place) {
    VectorBits x = lane_numbers() + u32(place >> 1);
    VectorBits y = VectorBits{} + (key.stream | u32(place >> 33));
    threefry(key, x, y);
    return {unit_interval(x), unit_interval(y)};
}

// Puts a pair into memory order; its vectors have the elements of even and of odd index.
INLINE VectorPair in_memory_order(VectorPair x) {
    float elements[2 * VECTOR_LANES];
    for (int i = 0; i < VECTOR_LANES; ++i) elements[2 * i] = x.a[i], elements[2 * i + 1] = x.b[i];
    __builtin_memcpy(&x, elements, sizeof x);
    return x;
}

INLINE float random_number(const RandomKey& key, i64 place) {
    u32 x = u32(place >> 1), y = key.stream | u32(place >> 33);
    threefry(key, x, y);
    return float(int((place & 1 ? y : x) >> 8)) * 0x1p-24f;
}

// Returns numbers in [0, 1), multiples of 2**-24, for the elements from `place` on that a loop over
// a stream of S computes at once. Loops with vectors begin at even places.
template <class S>
INLINE ComputeType<S> random_numbers(i64 place, const RandomKey& key) {
    if constexpr (LANES<ComputeType<S>> == 1) return random_number(key, place);
    else if constexpr (DEINTERLEAVED<S>) return random_pair(key, place);
    else return in_memory_order(random_pair(key, place));
}

}  // namespace optgen
