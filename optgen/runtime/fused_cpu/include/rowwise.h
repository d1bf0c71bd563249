// What loops over rows of elements read and write, several numbers at once or one, and add up.
// Streams are of the type stored, S, and all else is of the type of one number.
#include "optgen/runtime/fused_cpu/include/halves.h"

namespace optgen {

// Where the numbers of a value are: of streams in the type stored, else in the type computed in.
struct Place {
    void* at;

    template <class T>
    INLINE operator T*() const { return static_cast<T*>(at); }
    Place moved(i64 bytes) const { return {static_cast<char*>(at) + bytes}; }
};

template <class C>
struct NumberOf { using Type = C; };
template <>
struct NumberOf<Floats> { using Type = float; };
template <class S>
using Number = typename NumberOf<Computed<S>>::Type;

// Places in vectors: in their order, and where numbers go between pairs of them and memory.
constexpr struct Places {
    int all[WIDTH], even[WIDTH], odd[WIDTH], lower[WIDTH], upper[WIDTH];

    constexpr Places() : all(), even(), odd(), lower(), upper() {
        for (int i = 0; i < WIDTH; ++i) {
            all[i] = i, even[i] = 2 * i, odd[i] = 2 * i + 1;
            lower[i] = i / 2 + i % 2 * WIDTH, upper[i] = lower[i] + WIDTH / 2;
        }
    }
} PLACES;

INLINE Choice vector_of(const int* numbers) {
    Choice found;
    __builtin_memcpy(&found, numbers, sizeof found);
    return found;
}

// Of two vectors side by side, the numbers at these places.
INLINE Vector picked(Vector x, Vector y, Choice places) {
#ifdef __clang__
    for (int i = 0; i < WIDTH; ++i)
        places[i] = bits<int>(places[i] < WIDTH ? x[places[i]] : y[places[i] - WIDTH]);
    return bits<Vector>(places);
#else
    return __builtin_shuffle(x, y, places);
#endif
}

template <class S>
INLINE Floats whole(const S* from) { return load(from, 0); }

// Numbers beside those of S, in the order that these have in vectors.
template <class S>
INLINE Floats whole(const float* from) {
    Floats x;
    __builtin_memcpy(&x.a, from, VECTOR);
    __builtin_memcpy(&x.b, from + WIDTH, VECTOR);
    if (!IN_PAIRS<S>) return x;
    return {picked(x.a, x.b, vector_of(PLACES.even)), picked(x.a, x.b, vector_of(PLACES.odd))};
}

template <class S>
INLINE void set_whole(S* to, Floats x) { store(to, x); }

template <class S>
INLINE void set_whole(float* to, Floats x) {
    if (IN_PAIRS<S>)
        x = {picked(x.a, x.b, vector_of(PLACES.lower)), picked(x.a, x.b, vector_of(PLACES.upper))};
    __builtin_memcpy(to, &x.a, VECTOR);
    __builtin_memcpy(to + WIDTH, &x.b, VECTOR);
}

// The next numbers of a stream, or of what is beside it: as many as C is of.
template <class S, class C, class T>
INLINE C take(const T* from) {
    if constexpr (LANES<C> > 1) return whole<S>(from);
    else {
        C x = load<T, C>(*from);
        // What is left of a row does not fill vectors: no loop over it is to become one of vectors.
        if constexpr (LANES<Computed<S>> > 1) __asm__("" : "+m"(x));
        return x;
    }
}

// Of values that each hold for several elements: those of the next ones if there is one for every
// element, else the one at a place.
template <class S, class C, bool SPREAD, class T>
INLINE C take_fewer(const T* from, i64 next, i64 place) {
    if constexpr (SPREAD) return take<S, C>(from + next);
    else return C(from[place]);
}

template <class S, class C, class T>
INLINE void put(T* to, C x) {
    if constexpr (LANES<C> > 1) set_whole<S>(to, x);
    else *to = save<T, C>(x);
}

template <class S, class C>
INLINE void add(Number<S>* to, C x) { put<S>(to, C(take<S, C>(to) + x)); }

INLINE Floats& operator+=(Floats& x, Floats y) { return x = x + y; }
#pragma omp declare reduction(+ : Floats : omp_out += omp_in) initializer(omp_priv = Floats(0))

// The sum of what the lanes of a loop have added up.
INLINE float joined(float x) { return x; }
INLINE double joined(double x) { return x; }
INLINE float joined(Floats x) {
    Vector sum = x.a + x.b;
    for (int half = WIDTH / 2; half; half /= 2)
        sum += picked(sum, sum, vector_of(PLACES.all) + half);
    return sum[0];
}

}  // namespace optgen
