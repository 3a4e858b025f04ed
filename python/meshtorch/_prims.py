"""Rules of operators that torch makes in Python: torch.ops.prims."""

from . import _C

_RULES = {
    "... -> ...": """
        acos acosh asin asinh atan atanh bessel_i0 bessel_i0e bessel_i1 bessel_i1e bessel_j0 bessel_j1 bitwise_not cbrt ceil cos
        cosh digamma erf erf_inv erfc erfcx exp exp2 expm1 abs floor isfinite lgamma log log10 log1p log2 ndtri reciprocal round
        rsqrt sign signbit sin sinh spherical_bessel_j0 sqrt tan tanh trunc
    """,
    "..., ... -> ...": """
        atan2 bitwise_and bitwise_or bitwise_xor div eq fmax fmin fmod gcd ge gt hypot igamma igammac le lt maximum minimum ne
        nextafter pow remainder shift_left shift_right_arithmetic zeta
    """,
    "..., ..., ... -> ...": "fma",
    "+..., +... -> ...": "add sub",
    "*..., *... -> ...": "mul",
    "*... -> ...": "neg view_of",
}

for _rule, _names in _RULES.items():
    for _name in _names.split():
        _C.set_rule("prims::" + _name, _rule)
