"""Decimals, roots and powers as fractions: exact if rational, else to fifty digits and more.

A float of the C library may differ in its last bit from one machine to the next, and with it the weights.
"""

from decimal import Context, Decimal
from fractions import Fraction
from functools import lru_cache
from math import isqrt

SIXTY_DIGITS = Context(prec=60, Emin=-999)
"""Decimals of 60 digits; a number below 10^-999 is 0."""
_SCALE = 10**50
"""The denominator of a root that is not rational."""
_MOST_EXACT_BITS = 4096
"""The longest denominator of an exact power, in bits; a longer one is rounded to 60 digits."""


def exact(text: str) -> Fraction:
    """Return the exact value of a decimal string of the manifest, such as "0.05". Raises ValueError for other text."""
    return Fraction(text)


def square_root(number: Fraction) -> Fraction:
    """Return the root of a number of at least 0: exact if it is rational, else to 50 digits after the point."""
    above = isqrt(number.numerator)
    below = isqrt(number.denominator)
    if above**2 == number.numerator and below**2 == number.denominator:
        return Fraction(above, below)
    return Fraction(isqrt(number.numerator * _SCALE**2 // number.denominator), _SCALE)


@lru_cache(maxsize=4096)
def power(base: Fraction, exponent: Fraction) -> Fraction:
    """Return `base`, from 0 to 1, to the power of `exponent` > 0: exact if that is short, else to 60 digits."""
    if exponent.denominator == 1 and exponent * base.denominator.bit_length() <= _MOST_EXACT_BITS:
        return base**exponent.numerator
    return Fraction(SIXTY_DIGITS.power(_decimal(base), _decimal(exponent)))


def _decimal(number: Fraction) -> Decimal:
    return SIXTY_DIGITS.divide(Decimal(number.numerator), Decimal(number.denominator))
