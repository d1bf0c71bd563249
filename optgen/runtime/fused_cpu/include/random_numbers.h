// Random numbers from counters: Threefry-2x32 with 13 rounds (Salmon et al., "Parallel random
// numbers: as easy as 1, 2, 3", SC 2011). It adds, rotates and combines words of 32 bits, so loops
// with it vectorize on every CPU. The place of a random number is its element's index in row-major
// order. A block has two words. A number of 24 bits takes one word: the first word belongs to an
// even place, and the second word to the odd place after it. Numbers of 16 bits come from a cheaper
// function, whose key is a block: see RandomKey16.
#include "optgen/runtime/fused_cpu/include/loads_and_stores.h"
#include "optgen/runtime/fused_cpu/include/simd.h"
#include "optgen/runtime/fused_cpu/include/storage_rounding.h"

namespace optgen {

struct RandomKey {
    u32 words[3]; // the key schedule: the third word is derived from the first two
    u32 stream;

    RandomKey(double seed, double given_stream, double step, u32 call)
        : words{to_word(seed) | call << 24, to_word(step), 0}, stream(to_word(given_stream) << 8) {
        words[2] = words[0] ^ words[1] ^ 0x1bd11bda;
    }
    static u32 to_word(double x) { return x == x ? u32(i64(x)) : 0; } // NaN: infinite seed
};

template <int DISTANCE, class U>
INLINE void mix(U& x, U& y) {
    x += y;
    y = (y << DISTANCE | y >> (32 - DISTANCE)) ^ x;
}

// Turns a counter into the two words of its block; U is a word of 32 bits, or a vector of words.
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
    VectorBits numbers;
    for (int i = 0; i < VECTOR_LANES; ++i) numbers[i] = u32(i);
    return numbers;
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

// Puts a pair whose vectors have the elements of even and of odd index into memory order.
template <class Pair>
INLINE Pair in_memory_order(Pair x) {
    return {shuffled<&LaneOrders::lower>(x.a, x.b),
            shuffled<&LaneOrders::upper>(x.a, x.b)};
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

// Turns a sum of a counter and a key's first word into a word; U is a word, or a vector of them.
// This is Chris Wellons's permutation triple32 (hash-prospector), with the key in two of its steps.
// Loops that wait for roots and divisions compute it meanwhile.
template <class U>
INLINE U permuted(U x, U first, U second) {
    x ^= x >> 17 ^ second;
    x *= 0xed5ad4bb;
    x ^= x >> 11 ^ first;
    x *= 0xac4c1b51;
    x ^= x >> 15;
    x *= 0x31848bab;
    return x ^ x >> 14;
}

alignas(VECTOR_BYTES) static const VectorBits LANES_OF_VECTOR = VectorBits{} + VECTOR_LANES;

// Key of random numbers of 16 bits: the block of a stream's first counter. Two places share a word:
// they are a pair, an even place and the next.
struct RandomKey16 {
    static constexpr u32 RANGE_INCREMENT = 0x9e3779b9; // added to `first` for every 2**32 pairs

    u32 first, second;
    i64 next_pair = -1; // the pair to which the first lane of `counters` belongs
    VectorBits counters{}, first_words{}; // of the pairs of a vector: sums with first_at, first_at

    RandomKey16(double seed, double stream, double step, u32 call) {
        const RandomKey key(seed, stream, step, call);
        first = 0, second = key.stream;
        threefry(key, first, second);
    }

    // Returns the first word of the key for a pair: it depends on the upper half of `pair`.
    INLINE u32 first_at(i64 pair) const { return first + u32(pair >> 32) * RANGE_INCREMENT; }

    INLINE u32 word(i64 pair) const {
        return permuted(u32(pair) + first_at(pair), first_at(pair), second);
    }

    // Returns the words of a vector of pairs. If the pairs follow those of the last call, as they
    // mostly do, their counters are computed by one addition.
    INLINE VectorBits words(i64 pair) {
        const bool is_near_range_end = u32(pair + VECTOR_LANES) < 2 * VECTOR_LANES;
        if (__builtin_expect((pair != next_pair) | is_near_range_end, false)) move_to(pair);
        const VectorBits words = permuted(counters, first_words, VectorBits{} + second);
        counters += opaque(LANES_OF_VECTOR);
        next_pair = pair + VECTOR_LANES;
        return words;
    }

    INLINE void move_to(i64 pair) {
        const VectorBits lower = lane_numbers() + u32(pair), start = VectorBits{} + u32(pair);
        first_words = VectorBits{} + first_at(pair);
        // Lanes whose sum wrapped around are in the next 2**32 pairs.
        first_words = lower < start ? first_words + RANGE_INCREMENT : first_words;
        counters = lower + first_words;
    }
};

// Random integers from 0 to 2**16 - 1. A conversion to VectorPair divides them by 2**16.
struct RandomPair16 {
    VectorBits a, b;

    INLINE operator VectorPair() const { return {fraction(a), fraction(b)}; }
    static INLINE Vector fraction(VectorBits numbers) {
        return __builtin_convertvector(bit_cast<VectorMask>(numbers), Vector) * 0x1p-16f;
    }
};

// Random numbers of 16 bits for a loop over bfloat16. A word has the numbers of an even place and
// of the next place.
struct RandomWords16 {
    VectorBits words;

    INLINE operator RandomPair16() const { return {words & 0xffff, words >> 16}; }
};

// Returns the numbers of the even places from `place` on, and of the odd places between them.
INLINE RandomWords16 random_pair16(RandomKey16& key, i64 place) { return {key.words(place >> 1)}; }

INLINE float number_at(const RandomKey& key, i64 place) { return random_number(key, place); }
INLINE float number_at(const RandomKey16& key, i64 place) {
    const u32 word = key.word(place >> 1);
    return float(place & 1 ? word >> 16 : word & 0xffff) * 0x1p-16f;
}

// Returns random numbers of 16 bits for the same elements as `random_numbers`. Vectors hold the
// numbers as integers, which `rounded_at_random_to` reads without conversion.
template <class S>
INLINE auto random_bits16(i64 place, RandomKey16& key) {
    if constexpr (LANES<ComputeType<S>> == 1) return ComputeType<S>(number_at(key, place));
    else {
        const RandomWords16 words = random_pair16(key, place);
        if constexpr (IS_BFLOAT16<S>) return words;
        else if constexpr (DEINTERLEAVED<S>) return RandomPair16(words);
        else return in_memory_order(RandomPair16(words));
    }
}

template <class S>
INLINE ComputeType<S> random_numbers16(i64 place, RandomKey16& key) {
    if constexpr (LANES<ComputeType<S>> == 1) return number_at(key, place);
    else return RandomPair16(random_bits16<S>(place, key));
}

INLINE VectorPair rounded_at_random_to(VectorPair x, RandomPair16 chance, VectorPair eps) {
    if (eps.a[0] != float(BFLOAT16_EPS)) return rounded_at_random_to(x, VectorPair(chance), eps);
    return {bfloat16_at_random(x.a, chance.a ^ 0xffff), bfloat16_at_random(x.b, chance.b ^ 0xffff)};
}

// All streams of a loop with `RandomWords16` are bfloat16, so the rule rounds to bfloat16.
INLINE VectorPair rounded_at_random_to(VectorPair x, RandomWords16 chance, VectorPair) {
    return bfloat16_at_random(x, chance.words);
}

INLINE VectorPair number_pair(const RandomKey& key, i64 place) { return random_pair(key, place); }
INLINE VectorPair number_pair(RandomKey16& key, i64 place) {
    return RandomPair16(random_pair16(key, place));
}

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
