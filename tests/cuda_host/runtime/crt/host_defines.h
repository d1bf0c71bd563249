// The qualifiers that the toolkit's headers use. The compiler's package has this file, and the
// runtime's package, which torch installs, has not.
#pragma once
#define __host__
#define __device__
#define __global__
#define __shared__
#define __constant__
#define __managed__
#define __forceinline__ inline
#define __noinline__
#define __align__(n) __attribute__((aligned(n)))
#define __builtin_align__(n) __attribute__((aligned(n)))
#define __device_builtin__
#define __cudart_builtin__
#define __device_builtin_texture_type__
#define __device_builtin_surface_type__
#define __specialization_static static
#define CUDARTAPI
#define CUDARTAPI_CDECL
#define __CUDA_ARCH_FEAT_SM90_ALL 0
