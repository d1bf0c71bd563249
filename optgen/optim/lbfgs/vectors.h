// SIMD operations on blocks of vectors. A SIMD value has 64 bytes, in one register or in several.
// Functions are not inlined: each is compiled once, not for every pass that calls it.

using i64 = long long;

namespace {

template <class N>
N min(N a, N b) { return a < b ? a : b; }
template <class N>
N max(N a, N b) { return a > b ? a : b; }

template <class T>
struct Vector {
    static constexpr int WIDTH = 64 / sizeof(T);
    typedef T Lanes __attribute__((vector_size(64)));
    typedef T Unaligned __attribute__((vector_size(64), aligned(sizeof(T)), may_alias));

    static Lanes load(const T* at) { return *reinterpret_cast<const Unaligned*>(at); }
    static void store(T* at, Lanes value) { *reinterpret_cast<Unaligned*>(at) = value; }
    static double sum(Lanes value) {
        double total = 0;
        for (int lane = 0; lane < WIDTH; ++lane) total += double(value[lane]);
        return total;
    }
};

// Returns the greatest absolute value of a block, or `bound` if that is greater.
template <class T>
[[gnu::noinline]] double max_abs(const T* at, i64 n, double bound) {
    using V = Vector<T>;
    typename V::Lanes largest = {};
    i64 i = 0;
    for (; i + V::WIDTH <= n; i += V::WIDTH) {
        const typename V::Lanes value = V::load(at + i);
        largest = value > largest ? value : largest;
        largest = -value > largest ? -value : largest;
    }
    for (int lane = 0; lane < V::WIDTH; ++lane) bound = max(bound, double(largest[lane]));
    for (; i < n; ++i) bound = max(bound, double(at[i] < 0 ? -at[i] : at[i]));
    return bound;
}

// Adds the dot products of N rows with K vectors to sums[row * K + vector].
template <int N, int K, class T>
[[gnu::noinline]] void dots(T* const* rows, const T* const* vectors, i64 n, double* sums) {
    using V = Vector<T>;
    typename V::Lanes sum[N][K] = {};
    i64 i = 0;
    for (; i + V::WIDTH <= n; i += V::WIDTH) {
        typename V::Lanes vector_lanes[K];
        for (int k = 0; k < K; ++k) vector_lanes[k] = V::load(vectors[k] + i);
        for (int row = 0; row < N; ++row) {
            const typename V::Lanes value = V::load(rows[row] + i);
            for (int k = 0; k < K; ++k) sum[row][k] += value * vector_lanes[k];
        }
    }
    for (int row = 0; row < N; ++row)
        for (int k = 0; k < K; ++k) {
            double total = V::sum(sum[row][k]);
            for (i64 j = i; j < n; ++j) total += double(rows[row][j]) * double(vectors[k][j]);
            sums[row * K + k] += total;
        }
}

// Subtracts N weighted rows from a vector, one after another.
template <int N, class T>
[[gnu::noinline]] void subtract_weighted(T* const* rows, const double* weights, i64 n, T* vector) {
    using V = Vector<T>;
    T factor[N];
    for (int row = 0; row < N; ++row) factor[row] = T(weights[row]);
    i64 i = 0;
    for (; i + V::WIDTH <= n; i += V::WIDTH) {
        typename V::Lanes value = V::load(vector + i);
        for (int row = 0; row < N; ++row) value -= factor[row] * V::load(rows[row] + i);
        V::store(vector + i, value);
    }
    for (; i < n; ++i)
        for (int row = 0; row < N; ++row) vector[i] -= factor[row] * rows[row][i];
}

} // namespace
