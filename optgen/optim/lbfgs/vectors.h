// Operations on blocks of vectors, in SIMD registers of 64 bytes or in several smaller ones.
// The functions are not inlined, so each is compiled once and not for every caller.

using i64 = long long;

namespace {

template <class N>
N smaller(N a, N b) { return a < b ? a : b; }
template <class N>
N larger(N a, N b) { return a > b ? a : b; }

template <class T>
struct Vector {
    static constexpr int WIDTH = 64 / sizeof(T);
    typedef T Lanes __attribute__((vector_size(64)));
    typedef T Loose __attribute__((vector_size(64), aligned(sizeof(T)), may_alias));

    static Lanes load(const T* at) { return *reinterpret_cast<const Loose*>(at); }
    static void store(T* at, Lanes value) { *reinterpret_cast<Loose*>(at) = value; }
    static double sum(Lanes value) {
        double total = 0;
        for (int lane = 0; lane < WIDTH; ++lane) total += double(value[lane]);
        return total;
    }
};

// Returns the largest magnitude in a block, or `greatest` if it is larger.
template <class T>
[[gnu::noinline]] double farthest(const T* at, i64 n, double greatest) {
    using V = Vector<T>;
    typename V::Lanes most = {};
    i64 i = 0;
    for (; i + V::WIDTH <= n; i += V::WIDTH) {
        const typename V::Lanes value = V::load(at + i);
        most = value > most ? value : most;
        most = -value > most ? -value : most;
    }
    for (int lane = 0; lane < V::WIDTH; ++lane) greatest = larger(greatest, double(most[lane]));
    for (; i < n; ++i) greatest = larger(greatest, double(at[i] < 0 ? -at[i] : at[i]));
    return greatest;
}

// Adds the dot products of N rows with K vectors to sums[row * K + vector].
template <int N, int K, class T>
[[gnu::noinline]] void dots(T* const* rows, const T* const* vectors, i64 n, double* sums) {
    using V = Vector<T>;
    typename V::Lanes sum[N][K] = {};
    i64 i = 0;
    for (; i + V::WIDTH <= n; i += V::WIDTH) {
        typename V::Lanes with[K];
        for (int k = 0; k < K; ++k) with[k] = V::load(vectors[k] + i);
        for (int row = 0; row < N; ++row) {
            const typename V::Lanes value = V::load(rows[row] + i);
            for (int k = 0; k < K; ++k) sum[row][k] += value * with[k];
        }
    }
    for (int row = 0; row < N; ++row)
        for (int k = 0; k < K; ++k) {
            double total = V::sum(sum[row][k]);
            for (i64 j = i; j < n; ++j) total += double(rows[row][j]) * double(vectors[k][j]);
            sums[row * K + k] += total;
        }
}

// Subtracts N weighted rows from a vector, one after the other.
template <int N, class T>
[[gnu::noinline]] void subtract(T* const* rows, const double* weights, i64 n, T* vector) {
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
