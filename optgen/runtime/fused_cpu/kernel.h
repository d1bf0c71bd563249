// What every fused C++ kernel shares: the table of tensors, storage types, scalar streams, threads.
// The runtime pastes this text over the #include line when it builds a kernel. It includes nothing,
// so that a build takes a few tenths of a second, and nothing of it depends on a version of torch.

namespace optgen {

using i64 = long long;
using u64 = unsigned long long;
using u32 = unsigned int;
using u16 = unsigned short;

// torch's numbers for the types a stream may be stored in; 0 where a tensor has no such stream.
enum Type : u32 { ABSENT = 0, FLOAT16 = 5, FLOAT32 = 6, FLOAT64 = 7, BFLOAT16 = 15 };

// Tensors of all groups, in the order of the optimizer. Streams are the parameter, its gradient,
// the rule's states of the parameter's shape, then the scalar ones: step and scalar states.
// A tensor without a gradient has type ABSENT there and is left alone.
struct Table {
    i64 tensors;
    void* const* address;       // [stream][tensor]
    const i64* elements;        // [tensor]
    const u64* types;           // [tensor], four bits a stream, the parameter's lowest
    const int* group;           // [tensor]
    const unsigned char* fresh; // [tensor], bit k: the rule's k-th fresh key was made in this step
    const double* hypers;       // [group][hyperparameter]
    const double* grad_scale;   // what gradients are divided by, or null
};

// libgomp as found in the process (torch's own); all null where it has none.
struct Threads {
    int count;
    void (*parallel)(void (*)(void*), void*, unsigned, unsigned);
    int (*id)();
    int (*team)();
};

inline u32 type_of(u64 types, int stream) { return (types >> (4 * stream)) & 15; }

// The type's size in memory.
inline i64 bytes_of(u32 type) {
    return type == ABSENT ? 0 : type == FLOAT64 ? 8 : type == FLOAT32 ? 4 : 2;
}

template <class To, class From>
inline To bits(From from) {
    static_assert(sizeof(To) == sizeof(From), "same size");
    To to;
    __builtin_memcpy(&to, &from, sizeof to);
    return to;
}

// Storage of 16-bit types, written so that compilers vectorise it. Rounding is to nearest even.
struct bfloat16 {
    u16 code;
    static float load(bfloat16 x) { return bits<float>(u32(x.code) << 16); }
    static bfloat16 save(float x) {
        const u32 u = bits<u32>(x);
        const u32 rounded = (u + 0x7fff + ((u >> 16) & 1)) >> 16;
        return {u16((u & 0x7fffffff) > 0x7f800000 ? 0x7fc0 : rounded)};
    }
};

struct float16 {
    u16 code;
    static float load(float16 x) {
        const u32 magnitude = u32(x.code & 0x7fff) << 13;
        // The product moves the exponent and gives denormals their leading bit.
        const u32 finite = bits<u32>(bits<float>(magnitude) * 0x1p112f);
        const u32 special = magnitude | 0x7f800000;
        return bits<float>((magnitude < 0x0f800000 ? finite : special) | u32(x.code & 0x8000) << 16);
    }
    static float16 save(float x) {
        const u32 u = bits<u32>(x), magnitude = u & 0x7fffffff;
        const u32 normal = (magnitude + 0xc8000fff + ((magnitude >> 13) & 1)) >> 13;
        // Adding 0.5 leaves a denormal's bits, rounded, at the low end.
        const u32 denormal = bits<u32>(bits<float>(magnitude) + 0.5f) - 0x3f000000;
        const u32 special = magnitude > 0x7f800000 ? 0x7e00 : 0x7c00;
        const u32 finite = magnitude < 0x38800000 ? denormal : normal;
        return {u16((magnitude < 0x47800000 ? finite : special) | (u >> 16 & 0x8000))};
    }
};

template <class S, class C>
inline C load(S x) { return C(S::load(x)); }
template <> inline float load(float x) { return x; }
template <> inline double load(float x) { return x; }
template <> inline float load(double x) { return float(x); }
template <> inline double load(double x) { return x; }

template <class S, class C>
inline S save(C x) { return S::save(float(x)); }
template <> inline float save(float x) { return x; }
template <> inline float save(double x) { return float(x); }
template <> inline double save(float x) { return x; }
template <> inline double save(double x) { return x; }

// Elements first, first + 1, ... of a stream, to and from a buffer of the type computed in.
template <class S, class C>
void read(const void* stream, i64 first, i64 n, C* __restrict to) {
    const S* __restrict from = static_cast<const S*>(stream) + first;
    for (i64 i = 0; i < n; ++i) to[i] = load<S, C>(from[i]);
}

template <class C>
void read(u32 type, const void* stream, i64 first, i64 n, C* to) {
    if (type == FLOAT32) read<float>(stream, first, n, to);
    else if (type == FLOAT64) read<double>(stream, first, n, to);
    else if (type == BFLOAT16) read<bfloat16>(stream, first, n, to);
    else read<float16>(stream, first, n, to);
}

template <class S, class C>
void write(const C* __restrict from, void* stream, i64 first, i64 n) {
    S* __restrict to = static_cast<S*>(stream) + first;
    for (i64 i = 0; i < n; ++i) to[i] = save<S, C>(from[i]);
}

template <class C>
void write(u32 type, const C* from, void* stream, i64 first, i64 n) {
    if (type == FLOAT32) write<float>(from, stream, first, n);
    else if (type == FLOAT64) write<double>(from, stream, first, n);
    else if (type == BFLOAT16) write<bfloat16>(from, stream, first, n);
    else write<float16>(from, stream, first, n);
}

// A scalar stream of one tensor: its step, or a scalar state.
struct Scalar {
    double value;
    u32 type;

    // x in the type of this scalar: torch computes an update of a 0-dim tensor in that type.
    double rounded(double x) const {
        switch (type) {
            case FLOAT32: return float(x);
            case BFLOAT16: return bfloat16::load(bfloat16::save(float(x)));
            case FLOAT16: return float16::load(float16::save(float(x)));
            default: return x;
        }
    }
};

inline bool operator==(const Scalar& a, const Scalar& b) {
    return a.value == b.value && a.type == b.type;
}

// The words of the spec language. maximum and minimum are NaN where either operand is; sign(NaN)
// is 0. All as torch has them, and all selects: fmax and fmin do not vectorise.
inline float sqrt(float x) { return __builtin_sqrtf(x); }
inline double sqrt(double x) { return __builtin_sqrt(x); }
inline float exp(float x) { return __builtin_expf(x); }
inline double exp(double x) { return __builtin_exp(x); }
inline float log(float x) { return __builtin_logf(x); }
inline double log(double x) { return __builtin_log(x); }
inline float abs(float x) { return __builtin_fabsf(x); }
inline double abs(double x) { return __builtin_fabs(x); }
inline float pow(float x, float y) { return __builtin_powf(x, y); }
inline double pow(double x, double y) { return __builtin_pow(x, y); }
template <class C>
inline C sign(C x) { return C((x > 0) - (x < 0)); }
template <class C>
inline C maximum(C a, C b) { return a > b || a != a ? a : b; }
template <class C>
inline C minimum(C a, C b) { return a < b || a != a ? a : b; }

template <class C>
inline C clamp(C x, C low, C high) {
    const C raised = x >= low || x != x ? x : low;
    return raised <= high || raised != raised ? raised : high;
}
template <class C>
inline C lerp(C start, C end, C weight) { return start + weight * (end - start); }
inline double mod(double x, double y) {
    const double rest = __builtin_fmod(x, y);
    return rest != 0 && (rest < 0) != (y < 0) ? rest + y : rest;
}
inline float mod(float x, float y) { return float(mod(double(x), double(y))); }

// Facts about a hyperparameter. None arrives as one NaN of many (rule.py); others are true.
inline bool is_none(double x) { return bits<u64>(x) == 0x7ff80000004e4f4e; }
inline bool truth(double x) { return x != 0 && !is_none(x); }

// What a loop over elements branches on, 1 or 0 in the type it computes in, of unknown origin to the
// compiler: a branch on it becomes a select of vectors, a branch on a bool keeps a loop from becoming
// one of vectors at all.
template <class C>
inline C flag(bool condition) {
    C value = C(condition);
    __asm__("" : "+m"(value));
    return value;
}

template <class C>
constexpr u32 TYPE = sizeof(C) == 8 ? FLOAT64 : FLOAT32;

// Streams of other types, and gradients to be unscaled, go through buffers of this many elements.
constexpr i64 TILE = 512;

// Below this many bytes of traffic a second thread costs more than it brings.
constexpr i64 SERIAL = 16 << 20;

template <class T>
struct Buffer {
    T* data;

    explicit Buffer(i64 n) : data(static_cast<T*>(__builtin_malloc(u64(n) * sizeof(T)))) {
        if (!data) __builtin_trap();
    }
    Buffer(const Buffer&) = delete;
    ~Buffer() { __builtin_free(data); }
    T& operator[](i64 i) const { return data[i]; }

    void grow(i64 n) {
        data = static_cast<T*>(__builtin_realloc(data, u64(n) * sizeof(T)));
        if (!data) __builtin_trap();
    }
};

template <class R>
struct Kernel {
    using Hypers = typename R::Hypers;
    using Scalars = typename R::Scalars;
    static constexpr int STREAMS = R::STREAMS, CELLS = R::CELLS;
    static_assert(STREAMS + CELLS <= 16, "four bits a stream in 64");

    const Table& table;
    Buffer<i64> start;       // where each tensor begins in the list of all elements
    Buffer<int> run;         // each tensor's run of the scalar program
    Buffer<Scalars> results; // of each run
    i64 traffic;             // bytes to be moved

    explicit Kernel(const Table& given_table)
        : table(given_table), start(table.tensors + 1), run(table.tensors), results(64) {
        prepare();
    }

    i64 elements() const { return start[table.tensors]; }

    const Hypers& hypers(i64 tensor) const {
        return reinterpret_cast<const Hypers*>(table.hypers)[table.group[tensor]];
    }

    const Scalars& scalars(i64 tensor) const {
        return results[run[tensor]];
    }

    void* address(int stream, i64 tensor) const {
        return table.address[stream * table.tensors + tensor];
    }

    // Runs the scalar program of every tensor, and advances its step and scalar states. Neighbours
    // that agree in everything the program reads share one run.
    void prepare() {
        Scalar old[CELLS + 1] = {}, cells[CELLS + 1] = {};
        i64 at = 0, last = -1, runs = 0, room = 64;
        traffic = 0;
        for (i64 t = 0; t < table.tensors; ++t) {
            const u64 types = table.types[t];
            start[t] = at;
            if (type_of(types, 1) == ABSENT) continue;
            at += (table.elements[t] + 63) & ~63LL;
            for (int s = 0; s < STREAMS; ++s)
                traffic += table.elements[t] * bytes_of(type_of(types, s));

            bool same = last >= 0 && table.group[t] == table.group[last]
                && table.fresh[t] == table.fresh[last];
            for (int c = 0; c < CELLS; ++c) {
                Scalar cell{0, type_of(types, STREAMS + c)};
                if (cell.type) read(cell.type, address(STREAMS + c, t), 0, 1, &cell.value);
                same = same && cell == old[c];
                old[c] = cell;
            }
            if (!same) {
                for (int c = 0; c < CELLS; ++c) cells[c] = old[c];
                if (R::HAS_STEP) cells[0].value = cells[0].rounded(cells[0].value + 1);
                if (runs == room) results.grow(room *= 2);
                results[runs++] = R::program(hypers(t), cells, table.fresh[t]);
            }
            for (int c = 0; c < CELLS; ++c)
                if (cells[c].type)
                    write(cells[c].type, &cells[c].value, address(STREAMS + c, t), 0, 1);
            run[t] = int(runs - 1);
            last = t;
        }
        start[table.tensors] = at;
    }

    template <class C>
    void tiles(i64 t, i64 first, i64 n) const {
        C buffer[STREAMS][TILE];
        for (const i64 end = first + n; first < end; first += TILE) {
            const i64 m = end - first < TILE ? end - first : TILE;
            C* streams[STREAMS];
            for (int s = 0; s < STREAMS; ++s) {
                const u32 type = type_of(table.types[t], s);
                if (type == ABSENT) streams[s] = nullptr;
                else if (type == TYPE<C>) streams[s] = static_cast<C*>(address(s, t)) + first;
                else read(type, address(s, t), first, m, streams[s] = buffer[s]);
            }
            if (table.grad_scale) unscale(t, first, m, streams[1], buffer[1]);
            R::template update<C>(hypers(t), scalars(t), table.fresh[t], m, streams);
            for (int s = 0; s < STREAMS; ++s)
                if (s != 1 && streams[s] == buffer[s])
                    write(type_of(table.types[t], s), streams[s], address(s, t), first, m);
        }
    }

    // Gradients are unscaled in place, as torch's fused kernels do.
    template <class C>
    void unscale(i64 t, i64 first, i64 n, C* grads, const C* buffer) const {
        const C scale = C(*table.grad_scale);
        for (i64 i = 0; i < n; ++i) grads[i] /= scale;
        if (grads == buffer) write(type_of(table.types[t], 1), grads, address(1, t), first, n);
    }

    // Streams that are all of the type computed in are updated where they lie.
    template <class C>
    void span(i64 t, i64 first, i64 n) const {
        C* streams[STREAMS];
        for (int s = 0; s < STREAMS; ++s) {
            const u32 type = type_of(table.types[t], s);
            if (type != TYPE<C> && type != ABSENT) return tiles<C>(t, first, n);
            streams[s] = type ? static_cast<C*>(address(s, t)) + first : nullptr;
        }
        if (table.grad_scale) return tiles<C>(t, first, n);
        R::template update<C>(hypers(t), scalars(t), table.fresh[t], n, streams);
    }

    bool in_double(i64 t) const {
        for (int s = 0; s < STREAMS; ++s)
            if (type_of(table.types[t], s) == FLOAT64) return true;
        return false;
    }

    // Updates what lies in [low, high) of the list of elements.
    void range(i64 low, i64 high) const {
        i64 t = 0;
        for (i64 end = table.tensors; t + 1 < end;) {
            const i64 middle = (t + end) / 2;
            (start[middle] <= low ? t : end) = middle;
        }
        for (; t < table.tensors && start[t] < high; ++t) {
            const i64 first = low > start[t] ? low - start[t] : 0;
            const i64 last = high - start[t] < table.elements[t] ? high - start[t]
                                                                       : table.elements[t];
            if (type_of(table.types[t], 1) == ABSENT || first >= last) continue;
            if (in_double(t)) span<double>(t, first, last - first);
            else span<float>(t, first, last - first);
        }
    }
};

template <class R>
struct Region {
    const Kernel<R>& kernel;
    const Threads& threads;

    static void work(void* at) {
        const Region& region = *static_cast<const Region*>(at);
        const i64 blocks = region.kernel.start[region.kernel.table.tensors] / 64;
        const i64 id = region.threads.id(), team = region.threads.team();
        region.kernel.range(blocks * id / team * 64, blocks * (id + 1) / team * 64);
    }
};

// One step of all tensors of the table.
template <class R>
void step(const Table& table, const Threads& threads) {
    const Kernel<R> kernel(table);
    Region<R> region{kernel, threads};
    if (threads.count > 1 && kernel.traffic > SERIAL)
        threads.parallel(Region<R>::work, &region, unsigned(threads.count), 0);
    else
        kernel.range(0, kernel.elements());
}

}  // namespace optgen
