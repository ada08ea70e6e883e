"""Words that a variable of a kernel cannot be called in WGSL or OpenCL C: it gets a number behind it."""

_WGSL = """
alias break case const const_assert continue continuing default diagnostic discard else enable false fn for
if let loop override requires return struct switch true var while NULL Self abstract active alignas alignof
as asm asm_fragment async attribute auto await become cast catch class co_await co_return co_yield coherent
column_major common compile compile_fragment concept const_cast consteval constexpr constinit crate debugger
decltype delete demote demote_to_helper do dynamic_cast enum explicit export extends extern external
fallthrough filter final finally friend from fxgroup get goto groupshared highp impl implements import
inline instanceof interface layout lowp macro macro_rules match mediump meta mod module move mut mutable
namespace new nil noexcept noinline nointerpolation non_coherent noncoherent noperspective null nullptr of
operator package packoffset partition pass patch pixelfragment precise precision premerge priv protected pub
public readonly ref regardless register reinterpret_cast require resource restrict self set shared sizeof
smooth snorm static static_assert static_cast std subroutine super target template this thread_local throw
trait try type typedef typeid typename typeof union unless unorm unsafe unsized use using varying virtual
volatile wgsl where with writeonly yield array atomic bool f16 f32 i32 u32 vec2 vec3 vec4 ptr sampler
bitcast select
"""
_OPENCL = """
char short int long float double half uchar ushort uint ulong size_t void signed unsigned inline kernel
global local constant private generic read_only write_only read_write image1d_t image2d_t image3d_t event_t
uniform pipe int2 int4 uint2 uint3 uint4 float2 float4 half2 half4 as_int as_uint as_float vload_half
vstore_half NAN INFINITY MAXFLOAT HUGE_VALF M_PI M_E
"""
_FUNCTIONS = """
exp exp2 log log2 sin cos sqrt rsqrt inverseSqrt floor ceil trunc round rint pow fma abs fabs min max fmin
fmax clamp dot isnan isinf popcount countOneBits barrier workgroupBarrier storageBarrier
workgroupUniformLoad atomicAdd atomicMax atomicMin atomicLoad atomicStore atomicOr subgroupAdd subgroupMax
subgroupMin subgroupBroadcast subgroupShuffleXor pack2x16float unpack2x16float dot4I8Packed unpack_half2
pack_half2 main params Params group_id local_id global_id num_groups local_index subgroup_size
subgroup_lane subgroup_id negated_float negated_float2 negated_float4 negated_half negated_half2 negated_half4
"""
_PYTHON = """
and as assert async await break class continue def del elif else except finally for from global if import in
is lambda None nonlocal not or pass raise return True False try while with yield rt rt_place range
"""

RESERVED = frozenset((_WGSL + _OPENCL + _FUNCTIONS + _PYTHON).split())
