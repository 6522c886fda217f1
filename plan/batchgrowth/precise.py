"""Roots and powers as fractions: exact if rational, else to fifty digits and more, and the same on every machine.

A float of the C library may differ in its last bit from one machine to the next, and with it the weights.
"""

from decimal import Context, Decimal
from fractions import Fraction
from functools import lru_cache
from math import isqrt

__all__ = ["SIXTY_DIGITS", "power", "square_root"]

SIXTY_DIGITS = Context(prec=60, Emin=-999)
"""Decimals of 60 digits; a number below 10^-999 is 0."""
_SCALE = 10**50
_MOST_EXACT_BITS = 4096
"""The largest denominator of an exact power; a longer one is rounded to 60 digits."""


def square_root(number: Fraction) -> Fraction:
    """The root of a number that is not negative: exact if it is rational, else to 50 digits after the point."""
    above, below = isqrt(number.numerator), isqrt(number.denominator)
    if above**2 == number.numerator and below**2 == number.denominator:
        return Fraction(above, below)
    return Fraction(isqrt(number.numerator * _SCALE**2 // number.denominator), _SCALE)


@lru_cache(maxsize=4096)
def power(base: Fraction, exponent: Fraction) -> Fraction:
    """`base` from 0 to 1 to the power of `exponent` > 0: exact if that is short, else to 60 digits."""
    if exponent.denominator == 1 and exponent * base.denominator.bit_length() <= _MOST_EXACT_BITS:
        return base**exponent.numerator
    return Fraction(SIXTY_DIGITS.power(_decimal(base), _decimal(exponent)))


def _decimal(number: Fraction) -> Decimal:
    return SIXTY_DIGITS.divide(Decimal(number.numerator), Decimal(number.denominator))
