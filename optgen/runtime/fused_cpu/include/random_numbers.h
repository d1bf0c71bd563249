// Random numbers from counters: Threefry-2x32 with 13 rounds (Salmon et al., "Parallel random
// numbers: as easy as 1, 2, 3", SC 2011). It adds, rotates and combines words of 32 bits, so loops
// with it vectorize on every CPU. A block has two words. Numbers of 24 bits take one each: an even
// place, and the odd place after it. Numbers of 16 bits take half a word: see RandomKey16.
#include "optgen/runtime/fused_cpu/include/delayed_store.h"
#include "optgen/runtime/fused_cpu/include/lane_shuffles.h"
#include "optgen/runtime/fused_cpu/include/storage_rounding.h"

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
template <class Pair>
INLINE Pair in_memory_order(Pair x) {
    return {shuffled(x.a, x.b, lane_indices(LANE_ORDERS.lower)),
            shuffled(x.a, x.b, lane_indices(LANE_ORDERS.upper))};
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

// Key of random numbers of 16 bits, with the words of one group: 256 places, which share 64 blocks.
// The first 128 places have the first words, the others the second words. An even place has the lower
// half of its word, and the next place the upper half.
struct RandomKey16 : RandomKey {
    using RandomKey::RandomKey;

    i64 group = -1;
    u32 words[128];
};

INLINE u32 random_word16(const RandomKey& key, i64 place) {
    const i64 block = place >> 8 << 6 | (place >> 1 & 63);
    u32 x = u32(block), y = key.stream | u32(block >> 32);
    threefry(key, x, y);
    return place & 128 ? y : x;
}

INLINE void draw_group(RandomKey16& key, i64 group) {
    key.group = group;
    for (int i = 0; i < 64; i += VECTOR_LANES) {
        VectorBits x = lane_numbers() + (u32(group << 6) + i);
        VectorBits y = VectorBits{} + (key.stream | u32(group >> 26));
        threefry(key, x, y);
        __builtin_memcpy(key.words + i, &x, sizeof x);
        __builtin_memcpy(key.words + 64 + i, &y, sizeof y);
    }
}

// Returns the words of a vector's even places from `place` on.
INLINE VectorBits random_words16(RandomKey16& key, i64 place) {
    const i64 group = place >> 8, first = place >> 1 & 127;
    VectorBits found;
    if (first > 128 - VECTOR_LANES) { // the vector has places of two groups
        for (int i = 0; i < VECTOR_LANES; ++i) found[i] = random_word16(key, place + 2 * i);
        return found;
    }
    if (group != key.group) draw_group(key, group);
    __builtin_memcpy(&found, key.words + first, sizeof found);
    return found;
}

// Random numbers from 0 to 2**16 - 1. They convert to fractions, in [0, 1).
struct RandomPair16 {
    VectorBits a, b;

    INLINE operator VectorPair() const { return {fraction(a), fraction(b)}; }
    static INLINE Vector fraction(VectorBits numbers) {
        return __builtin_convertvector(bit_cast<VectorMask>(numbers), Vector) * 0x1p-16f;
    }
};

// Returns the numbers of the even places from `place` on, and of the odd places between them.
INLINE RandomPair16 random_pair16(RandomKey16& key, i64 place) {
    const VectorBits words = random_words16(key, place);
    return {words & 0xffff, words >> 16};
}

INLINE float number_at(const RandomKey& key, i64 place) { return random_number(key, place); }
INLINE float number_at(const RandomKey16& key, i64 place) {
    const u32 word = random_word16(key, place);
    return float(place & 1 ? word >> 16 : word & 0xffff) * 0x1p-16f;
}

// Returns random numbers as random_numbers does, of 16 bits: for vectors as whole numbers, for
// rounded_at_random_to.
template <class S>
INLINE auto random_bits16(i64 place, RandomKey16& key) {
    if constexpr (LANES<ComputeType<S>> == 1) return ComputeType<S>(number_at(key, place));
    else {
        const RandomPair16 numbers = random_pair16(key, place);
        return DEINTERLEAVED<S> ? numbers : in_memory_order(numbers);
    }
}

template <class S>
INLINE ComputeType<S> random_numbers16(i64 place, RandomKey16& key) {
    return random_bits16<S>(place, key);
}

INLINE VectorPair rounded_at_random_to(VectorPair x, RandomPair16 chance, VectorPair eps) {
    if (eps.a[0] != float(BFLOAT16_EPS)) return rounded_at_random_to(x, VectorPair(chance), eps);
    return {bfloat16_at_random(x.a, chance.a ^ 0xffff), bfloat16_at_random(x.b, chance.b ^ 0xffff)};
}

INLINE VectorPair number_pair(const RandomKey& key, i64 place) { return random_pair(key, place); }
INLINE VectorPair number_pair(RandomKey16& key, i64 place) { return random_pair16(key, place); }

// Fills an array with the random numbers of `place` and the places after it.
template <class Key, class C>
void draw_numbers(Key key, i64 place, i64 n, C* to) {
    i64 i = 0;
    if constexpr (sizeof(C) == sizeof(float)) {
        if (place & 1 && n) to[i++] = number_at(key, place);
        for (; i + 2 * VECTOR_LANES <= n; i += 2 * VECTOR_LANES) {
            const VectorPair numbers = in_memory_order(number_pair(key, place + i));
            __builtin_memcpy(to + i, &numbers, sizeof numbers);
        }
    }
    for (; i < n; ++i) to[i] = number_at(key, place + i);
}

}  // namespace optgen
