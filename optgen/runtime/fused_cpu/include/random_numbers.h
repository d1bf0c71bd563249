// Random numbers from counters: Threefry-2x32 with 20 rounds (Salmon et al., "Parallel random
// numbers: as easy as 1, 2, 3", SC 2011). It adds, rotates and combines words of 32 bits, so loops
// with it vectorize on every CPU.
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

// Returns the first word of the block of a counter; U is a word, or a vector of words.
template <class U>
INLINE U threefry(const RandomKey& key, U x, U y) {
    const u32 k0 = key.words[0], k1 = key.words[1], k2 = key.words[2];
    x += k0, y += k1;
    mix<13>(x, y), mix<15>(x, y), mix<26>(x, y), mix<6>(x, y);
    x += k1, y += k2 + 1;
    mix<17>(x, y), mix<29>(x, y), mix<16>(x, y), mix<24>(x, y);
    x += k2, y += k0 + 2;
    mix<13>(x, y), mix<15>(x, y), mix<26>(x, y), mix<6>(x, y);
    x += k0, y += k1 + 3;
    mix<17>(x, y), mix<29>(x, y), mix<16>(x, y), mix<24>(x, y);
    x += k1, y += k2 + 4;
    mix<13>(x, y), mix<15>(x, y), mix<26>(x, y), mix<6>(x, y);
    return x + k2;
}

// Returns 0, 1, 2, ...
INLINE VectorBits lane_numbers() {
    VectorBits found;
    for (int i = 0; i < VECTOR_LANES; ++i) found[i] = u32(i);
    return found;
}

// Returns the vector of numbers in [0, 1) of elements place, place + STEP, place + 2 * STEP, ...
template <int STEP>
INLINE Vector random_vector(const RandomKey& key, i64 place) {
    const VectorBits low = lane_numbers() * STEP + u32(place);
    const VectorBits high = VectorBits{} + (key.stream | u32(place >> 32));
    const VectorBits bits = threefry(key, low, high) >> 8;
    return __builtin_convertvector(bit_cast<VectorMask>(bits), Vector) * 0x1p-24f;
}

// Returns numbers in [0, 1), multiples of 2**-24, for the elements from `place` on that a loop over
// a stream of S computes at once. A vector's elements lie within a block of 2**32.
template <class S>
INLINE ComputeType<S> random_numbers(i64 place, const RandomKey& key) {
    if constexpr (LANES<ComputeType<S>> == 1) {
        const u32 bits = threefry(key, u32(place), key.stream | u32(place >> 32)) >> 8;
        return ComputeType<S>(int(bits)) * ComputeType<S>(0x1p-24f);
    } else if constexpr (DEINTERLEAVED<S>) {
        return {random_vector<2>(key, place), random_vector<2>(key, place + 1)};
    } else {
        return {random_vector<1>(key, place), random_vector<1>(key, place + VECTOR_LANES)};
    }
}

}  // namespace optgen
