"""SIMD vectors for kernels: types, memory, operators, lanes, mathematics (see also `graphml_cpu.compiler`).

`F32`, `I32`, `U8`, ... are vectors of one register at the level of the process: `WIDTH` lanes of float32 or
int32, 4 * `WIDTH` of bytes. `vector(element, lanes)` makes any other.
"""

from typing import Any

from graphml_cpu import target
from graphml_cpu.frontend.types import float32
from graphml_cpu.simd.arithmetic import (
    absolute,
    bitcast,
    convert,
    copy_sign,
    float_bits,
    float_from_bits,
    fma,
    maximum,
    minimum,
    narrow_saturated,
    ramp,
    round_even,
    select,
    splat,
    splat_like,
    square_root,
    to_float,
    zero,
)
from graphml_cpu.simd.atomics import atomic_add, atomic_load, atomic_store, compare_swap, pause
from graphml_cpu.simd.bfloats import bf16_to_f32, dot2_bf16, f32_to_bf16, narrow_to_bf16
from graphml_cpu.simd.calls import call_kernel
from graphml_cpu.simd.lanes import (
    any_lane,
    concatenate,
    constant_lanes,
    dot4,
    dot4_signed,
    extract,
    high_half,
    insert,
    lookup16,
    low_half,
    max_lanes,
    min_lanes,
    rotate_right,
    rotate_right_by,
    shuffle_by,
    shuffle_pair_by,
    sum_lanes,
)
from graphml_cpu.simd.math import (
    erf,
    exp,
    gelu_erf,
    gelu_quick,
    gelu_tanh,
    log,
    log1p_exp,
    sigmoid,
    silu,
    tanh,
)
from graphml_cpu.simd.memory import (
    gather,
    gather_f16,
    load,
    load_bf16,
    load_f16,
    load_f32,
    load_i8,
    load_i16,
    load_i32,
    load_i64,
    load_partial,
    load_u8,
    load_u16,
    load_u32,
    load_whole,
    prefetch,
    prefetch_near,
    prefetch_once,
    prefetch_write,
    store,
    store_f16,
    store_f32,
    store_i8,
    store_i16,
    store_i32,
    store_i64,
    store_partial,
)
from graphml_cpu.simd.tables import constant_table, float_lookup, word_lookup
from graphml_cpu.simd.tiles import load_columns, store_columns
from graphml_cpu.simd.types import VectorType, vector

f32: Any = float32
WIDTH = target.current().f32_lanes
F32 = vector("f32", WIDTH)
F16 = vector("f16", WIDTH)
I32 = vector("i32", WIDTH)
U32 = vector("u32", WIDTH)
I8 = vector("i8", WIDTH * 4)
U8 = vector("u8", WIDTH * 4)
