"""List forms to draw expressions from, by kind of value; docs/spec-language.md explains the words.

A letter after `$` stands for an expression; a letter that comes twice is the same expression:

* a, b: a tensor. n, k: a number. l: a number that a reduction makes (a *reduced number*).
* r, c: one number per row, or per column. s, z: a matrix (rows, rows), or (cols, cols).
* h, j, i, d, y: a matrix (rows, rank), (cols, rank), (rank, cols), (rank, rows), (rank, rank).
* q, p: a condition. m, o: a condition for each element, as in `where`.
* x: the operand of a reduction.
* w: a whole exponent. e: any moderate exponent. v: an extreme exponent. u: a constant.

Values stay moderate: operands of roots are not negative, and most divisors keep away from 0.
"""

TIDY_CONSTANTS = ("0.5", "2", "0.125", "1", "3", "0.9", "0.1", "1.5", "SCALE")
ODD_CONSTANTS = (
    "0", "-1", "-0.5", "2*3", "1 - 1", "-(-2)", "1/3", "2**-3", "5 % 3", "-0.0", "7e-1", "abs(2*3)",
    "-2 % 3", "2**0.5", "- -1", "+2", "sqrt(4)", "maximum(1, 2)", "0 * 3", "1 / 8 / 2", "-SCALE",
    "tanh(2)", "atan2(1, -2)", "round(-2.5)", "floor(-0.5)", "ceil(SCALE)", "cos(0)", "sin(1/2)",
)  # fmt: skip
WHOLE_EXPONENTS = ("2", "3", "1", "0", "4", "7", "-0", "2.0")
EXPONENTS = ("2", "3", "0.5", "1.5", "-1", "-2", "-0.5", "0", "-3", "0.25", "2.5", "1/3")
EXTREME_EXPONENTS = ("40", "-40", "1e3", "2**63", "-2**63", "(-2)**3", "17", "-17", "5.5")

NUMBERS = (
    "($n + $k)", "($n - $k)", "($n * $k)", "($n / (abs($k) + 1))", "(-$n)", "sqrt(abs($n))",
    "maximum($n, $k)", "minimum($n, $k)", "abs($n)", "($n / 2)", "tanh($n)", "cos($n)",
)  # fmt: skip
ODD_NUMBERS = (
    "(-(-$n))", "- -$n", "-(-(-$n))", "($n % 2)", "($n % (abs($k) + 0.5))", "exp(-abs($n))",
    "log(abs($n) + 0.5)", "sign($n)", "clamp($n, -1, 2)", "lerp($n, $k, $u)", "(+$n)",
    "where($q, $n, $k)", "(abs($n) + 0.5)**$e", "(abs($n) + 0.5)**clamp($k, -2, 2)",
    "$u**clamp($n, -3, 3)", "$n**$w", "($n / $u)", "(0 * $n)", "(1 * $n)", "($n - $n)", "$n**0",
    "($n + $k - $n)", "abs(2*3)", "2**clamp($n, 0, 2)", "($n / $k)", "clamp($n, $k, 3)",
    "-$n**2", "(-$n)**2", "($n - ($k - $n))", "(1 - $n**2)", "($n + machine_eps(p))",
    "($n / numel(p))", "($n / (1 + ndim(p)))", "where(not $q, $n, 0)", "sin($n)", "atan2($n, $k)",
    "floor($n)", "ceil($n * 3)", "round($n / 0.25)", "($n - floor($n))", "sqrt(1 - tanh($n)**2)",
)  # fmt: skip

TENSORS = (
    "($a + $b)", "($a - $b)", "($n * $a)", "($a * $n)", "($a + $n)", "($n - $a)", "($a * $b)",
    "($a / (abs($b) + 0.5))", "($a / (sqrt($b**2) + 0.25))", "(-$a)", "lerp($a, $b, $n)",
    "($n * $a + (1 - $n) * $b)", "$a**2", "sqrt(abs($a))", "abs($a)", "sign($a)",
    "maximum($a, $b)", "minimum($a, $n)", "where($m, $a, $b)", "clamp($a, -1, $n**2)",
    "($a / ($n**2 + 1))", "tanh($a)", "atan2($a, $b)",
)  # fmt: skip
ODD_TENSORS = (
    "$a**$w", "(abs($a) + 0.5)**$e", "(abs($a) + 0.5)**clamp($n, -2, 2)", "$u**clamp($a, -2, 2)",
    "(abs($n) + 0.5)**clamp($a, -2, 2)", "abs($a)**$e", "abs($a)**(abs($n) + 0.5)", "($a % 0.5)",
    "($a % -1.5)", "($a % (abs($n) + 0.5))", "($a % (abs($b) + 0.5))", "($n % (abs($a) + 0.5))",
    "exp(-abs($a))", "exp(clamp($a, -2, 2))", "log(abs($a) + 0.5)", "(-(-$a))", "- -$a",
    "-(-(-$a))", "($a - $a)", "(0 * $a + $b)", "(1 * $a)", "($a / $u)", "($a / abs($n))",
    "($n / (1 + $a**2))", "where($m, $n, $b)", "where($m, $a, 0)", "where($m, $n, $k)",
    "where($q, $a, $b)", "where($q, $n, $a)", "(sqrt(abs($a)) / sqrt($b**2 + 1))",
    "lerp($a, $n, $b)", "lerp($n, $a, $k)", "clamp($a, $b, $b + 1)", "clamp($n, $a, 2)",
    "($a / (abs($b) / (abs($n) + 0.5) + 1))", "($a**0 + $b)", "(($a + $b) - $a)", "-$a**2",
    "(2 + 0*$a)", "sqrt($a**2)", "($a * $a / (abs($a) + 1))", "(abs($a) + 0.5)**$w", "$a**-0",
    "(abs($a) + 0.5)**-$w", "maximum($a, $n)", "minimum($n, $a)", "sign($a) * sqrt(abs($a))",
    "exp(log(abs($a) + 1))", "($a / ($b**2 + 1) / (abs($n) + 1))", "($a - ($b - $a))",
    "sqrt(maximum($a, 0))", "log(exp(clamp($a, -1, 1)))", "blend($a, $b)", "turned($a, $b)",
    "blend($a, $n)", "turned(blend($a, $b), $a)", "(+$a)", "where($m, -$a, -(-$b))", "sin($a)",
    "cos($a)", "tanh($n * $a)", "atan2($a, $n)", "atan2($n, $b)", "atan2($a, abs($b) + 0.5)",
    "atan2(-$a, sqrt($b**2))", "floor($a)", "ceil($a / 0.5)", "round(4 * $a)", "($a - floor($a))",
    "sqrt(1 - tanh($a)**2)", "round($a * 8) / 8", "sign($a) * floor(abs($a))",
    "sqrt(1 + cos($a))", "ceil(abs($a))**$e",
)  # fmt: skip
ROUNDINGS = (
    "rounded($a + $b)", "rounded_down($a)", "rounded_up($n * $a)",
    "rounded_at_random($a, $b)", "rounded_at_random($a + $b, $n)", "($a - rounded($a))",
    "($a - (rounded($a + $b) - $b))",
)  # fmt: skip
EXTREME_TENSORS = (
    "abs($a)**$v",
    "($a / $b)",
    "($a % $b)",
    "sqrt($a)",
    "log($a)",
    "$a**$v",
    "exp($a)",
)

RANDOM = (
    "random($n, $k)", "random(7, $w)", "(random($u, 1) * $a)", "where(random(3, 4) < 0.5, $a, $b)",
    "(2 * random(t, $n * 100) - 1)", "(random16(2, $n * 9) - 0.5)",
    "rounded_down($a + random(1, 2) * 0.5)", "rounded_at_random($a, random16(3, t))",
)  # fmt: skip
"""Forms for rules that read the step count, because some of these forms do."""

TENSORS_WITH_REDUCED_NUMBERS = (
    "($a * $l)", "($a - $l)", "($a / (1 + abs($l)))", "where($l > 0.1, $a, $b)",
    "where(abs($a) < $l, $a, $b)", "where($m, $a, $l)", "clamp($a, -abs($l), abs($l))",
    "lerp($a, $b, $l)", "maximum($a, $l)", "($l + $a)", "where($l > $a, $l, $b)",
    "($a % (1 + abs($l)))",
    "(abs($a) + 0.5)**clamp($l, -1, 2)", "($l - $a)", "lerp($l, $a, 0.5)", "minimum($l, $a)",
    "atan2($a, $l)", "atan2($l, $a)", "tanh($a / (1 + abs($l)))",
)  # fmt: skip
TENSORS_WITH_AXES = (
    "($a * $r)", "($a - $c)", "($a - $r)", "($a / sqrt(1 + $r**2))", "($r * $c)",
    "($a + $r * $c)", "where($r > $c, $a, $b)", "where($a > $r, $a, $c)", "lerp($a, $r, $n)",
    "clamp($a, -1, abs($c))", "maximum($a, $r)", "($a / (abs($r * $c) + 0.5))", "($r - $a)",
    "where($m, $r, $a)", "lerp($r, $c, $l)", "($a * $r / (abs($c) + 1))", "($r + $c)",
    "$a % (1 + abs($r))", "atan2($a, $r)", "atan2($r, $c)", "atan2($c, $a)",
    '($a * rms($x, over="matrix"))', '($a / (1 + norm($x, over="matrix")))',
    '($a - mean($x, over="matrix"))', '($a + sum($r, over="matrix"))',
    '($a * max_abs($c, over="matrix") / (1 + norm($x)))',
)  # fmt: skip

REDUCED_NUMBERS = (
    "mean($x)", "rms($x)", "max_abs($x)", "norm($x)", "sum($x)", "(sum($x) / numel(p))",
    "($n * mean($x))", "($n / (1 + rms($x)))", "maximum($n, mean($x))",
    "where(mean($x) > 0, $n, 0.5)",
    "clamp(norm($x), 0.1, 2)", "(abs(mean($x)) + 0.5)**$e", "(-(-rms($x)))", "(mean($x) % 1)",
    "(mean($x) - $l)", "sqrt(abs(sum($x)))", "lerp($n, rms($x), 0.5)", "where($q, mean($x), $n)",
    "minimum(rms($x), $l)", "exp(-rms($x))", "sign(sum($x))", "log(1 + norm($x))", "- -mean($x)",
    "tanh(sum($x))", "atan2(sum($x), $l)", "cos(norm($x))", "ceil(rms($x))", "round(8 * mean($x))",
)  # fmt: skip
REDUCED_NUMBERS_OF_AXES = (
    "mean($r)", "max_abs($c)", "norm($r)", "sum($c)", "rms($c)", "rms($r * $c)", "max_abs($r)",
    "max_abs(row_norm($x))", "mean(col_rms($x))", "mean(row_max_abs($x))", "rms(col_max_abs($x))",
    "max_abs(row_mean($x))", "(max_abs($x) - max_abs(row_max_abs($x)))", "max_abs($r * $c)",
)  # fmt: skip
ROWS = (
    "row_mean($x)", "row_mean($x)", "(row_sum($x) / cols(p))", "row_sum($x)", "($n * row_mean($x))",
    "sqrt(row_mean($x**2))", "(row_mean($x) - mean($x))", "row_mean($x * $c)",
    "($r + row_mean($x))",
    "lerp($r, row_mean($x), 0.25)", "($r / (1 + col_mean($r)**2))", "($r * $l)",
    "where($r > 0.2, $r, $n)", "maximum($r, row_sum($x))", "(-(-$r))", "row_mean(2 + 0*g)",
    "row_mean(g**0)", "row_sum(p - p)", "row_mean(1*$x)", "row_mean($c)", "(abs($r) + 0.5)**$e",
    "($r % 1.5)", "abs($r)", "where($q, $r, row_mean($x))", "clamp($r, -1, 1)", "sign($r)",
    "row_norm($x)", "row_rms($x)", "row_norm($c)", "row_rms($r * $c)", "(row_norm($x) / norm($x))",
    "tanh($r)", "sin($r)", "atan2($r, $n)", "atan2(row_sum($x), $r)", "floor($r * 4)",
    "round(row_norm($x))", "row_max_abs($x)", "(row_max_abs($x) * $l)", "row_max_abs($r * $c)",
    "row_max_abs($c)", "maximum($r, row_max_abs($x))", "lerp($r, row_max_abs($x), 0.25)",
    "($r / (1 + col_max_abs($r)))", "(row_mean($x) / (1 + row_max_abs($x)))", "row_max_abs(0 * g)",
    "row_max_abs(2 + 0*g)", "(row_norm($x) - row_max_abs($x))",
    '($r / (1 + norm($r, over="matrix")))', '(row_mean($x) * max_abs($x, over="matrix"))',
    '($r - mean($c, over="matrix"))', '(row_sum($x) - sum($x, over="matrix"))',
)  # fmt: skip
LEFTS = (
    "($a @ transpose($b))", "(0.5 * $s + 0.25 * $a @ transpose($a))", "($s @ $s)", "transpose($s)",
    "($n * $s)", "($s + identity($s))", "tanh($s)", "where($s > 0.1, $s, $n)", "maximum($s, $n)",
    "inverse_root($a @ transpose($a), 2, 0.5)", "inverse_root($s, 4, abs($n) + 0.25)",
    "inverse_root($a @ transpose($a), 4, 0)",
    "inverse_root($s @ transpose($s), 3, $u**2 + 0.5)", "lerp($s, $a @ transpose($b), 0.25)",
    "(transpose($s) @ $s)", "($s * $r)", "($s - transpose($r))", "($r @ transpose($r))",
    "($a @ $z @ transpose($b))", "($s / (1 + abs($l)))", "($s / (1 + trace($s)**2))", "(-$s)",
    "where($q, $s, transpose($s))", "clamp($s, -1, 1)", "qr($s + 2 * identity($s))",
    "eigenvectors($s)", "descending($r)", "(descending(diag($s)) @ $s)", "(0 * $s)", "($s - $s)",
    '($s / (1 + norm($s, over="matrix")))', "lower($s)", "upper($s)",
    "cholesky($s @ transpose($s) + identity($s))", "($s - row_ones($s) @ col_ones($s))",
    "solve_triangular(lower($s)**2 + identity($s), $s)",
    "solve_transposed(cholesky($s @ transpose($s) + identity($s)), $s)",
)  # fmt: skip
RIGHTS = (
    "(transpose($a) @ $b)", "(0.5 * $z + 0.25 * transpose($a) @ $a)", "($z @ $z)", "transpose($z)",
    "($n * $z)", "($z + identity($z))", "sign($z)", "where($z > 0.1, $z, $n)", "minimum($z, $n)",
    "inverse_root(transpose($a) @ $a, 2, 0.5)", "inverse_root($z, 4, abs($n) + 0.25)",
    "inverse_root(transpose($a) @ $a, 2, 0)",
    "lerp($z, transpose($a) @ $b, 0.25)", "($z * $c)", "($z - transpose($c))",
    "(transpose($c) @ $c)", "(transpose($a) @ $s @ $b)", "($z / (1 + trace($z)**2))",
    "(abs($z) + 0.5)**$e", "(-$z)", "qr($z + 2 * identity($z))", "descending(diag($z))",
    "descending(eigenvalues($z))", "lower($z)", "upper($z @ transpose($z))",
    "cholesky(transpose($a) @ $a + identity($z))", "(row_ones($z) @ $c)",
    "solve_transposed($z + 4 * identity($z), identity($z))",
)  # fmt: skip
THIN_ROWS = (
    "singular_vectors($a, rank)", "($a @ $j)", "($s @ $h)", "($h @ $y)",
    "(0.5 * $h + 0.25 * $a @ $j)", "transpose($d)",
    "($n * $h)", "($h * $r)", "($h + row_mean($h))", "($h / (1 + col_norm($h)))", "tanh($h)",
    "where($h > 0.1, $h, $n)", "($h / (1 + mean($h)**2))", "(-$h)", "clamp($h, -1, 1)",
    "lerp($h, $a @ transpose($i), 0.25)", "($r @ col_mean($h))", "($h - transpose($d))",
    "($h * (1 + row_rms($h)))", "($s @ $a @ $j @ $y)", "($h / (1 + sum($h)**2))", "(0 * $h)",
    "qr($h)", "gaussian($h, $n, $k)", "singular_vectors($s, rank)", "($h + rms($h))",
    '($h * max_abs($h, over="matrix"))', '($h + sum($h, over="matrix"))',
    "lower($h)", "solve_triangular($s @ transpose($s) + identity($s), $h)",
    "($h * transpose(row_mean($y)))", "($h @ identity($y))", "where($q, $h, transpose($d))",
)  # fmt: skip
WIDE_ROWS = (
    "transpose($h)", "($d @ $s)", "($y @ $d)", "($n * $d)", "($i @ transpose($a))", "sign($d)",
    "($d * transpose($r))", "($d + col_mean($d))", "($d / (1 + row_norm($d)))", "(-$d)",
    "where($d > 0.1, $d, $n)", "($d / (1 + rms($d)**2))", "lerp($d, transpose($a @ $j), 0.25)",
    "($d - row_rms($d))", "($y @ transpose($h))", "(diag($y) * $d)", "gaussian($d, 3, $w)",
    "($d + max_abs($d) * $d)", "where($q, $d, transpose($h))", "(abs($d) + 0.5)**$e",
)  # fmt: skip
RANKS = (
    "(transpose($h) @ $h)", "(0.5 * $y + 0.25 * $d @ $h)", "($i @ $j)", "($y @ $y)",
    "transpose($y)",
    "($n * $y)", "($y + identity($y))", "tanh($y)", "inverse_root($d @ transpose($d), 2, 0.5)",
    "inverse_root($y, 4, abs($n) + 0.25)", "($y * diag($y))", "($y - transpose(row_mean($y)))",
    "($y / (1 + trace($y)**2))", "($i @ transpose($a) @ $h)", "maximum($y, $n)",
    "($y / (1 + mean($y * $y)))", "(descending(diag($y)) @ $y)", "($y / (1 + rms($y)))",
    "where($y > 0.1, $y, $n)", "qr($y + 2 * identity($y))", "eigenvectors($y)", "(-$y)",
    "cholesky(transpose($h) @ $h + identity($y))", "upper($y)",
    "($y @ row_ones($y) @ col_ones($y))",
    "singular_vectors($i, rank)", "($y + eigenvalues($y + transpose($y)))",
)  # fmt: skip
TENSORS_WITH_THIN = (
    "($h @ transpose($j))", "($h @ $i)", "(transpose($d) @ $i)", "($h @ $y @ $i)", "($a * rms($d))",
    "($a * row_norm($h))", "($a / (1 + norm($y)))", "($a + transpose(row_mean($j)))",
    "($a @ $j @ transpose($j))", "($a * mean($h))", "transpose($j @ transpose($h))",
    "($a - $h @ $i)",
    "where($m, $h @ $i, $b)", "($a * col_mean($i))", "($a / (1 + trace($y)**2))",
    "($a * max_abs($i))",
    "($a + transpose(col_rms($d)))", "($a @ transpose($i) @ $i)", "(transpose($d) @ $d @ $a)",
    "(qr($h) @ transpose(qr($h)) @ $a)", "($a / (1 + sum($d * $d)))", "($a + row_sum($h) * $c)",
)  # fmt: skip
TENSORS_WITH_SQUARES = (
    "($s @ $a)", "($a @ $z)", "($s @ $a @ $z)", "($a * diag($s))", "($a * transpose(diag($z)))",
    "($a / (1 + trace($s)**2))", "transpose($z @ transpose($a))", "(transpose($s) @ $a)",
    "($n * $s @ $a)", "($s @ ($a + $b))", "($r @ $c)", "($a @ transpose($c) * $c)",
    "($a + eigenvalues($s))", "transpose(transpose($a) @ transpose($s))", "where($m, $s @ $a, $b)",
    "($a / (1 + mean($s * $s)))", "($a * row_mean($s))", "($a + transpose(row_rms($z)))",
    "($a + transpose(col_sum($s)))", "($a / (1 + norm($z)))", "($a * ($s @ $r))",
    "($a / (1 + row_max_abs($s)))", "($a * row_max_abs(transpose($z @ transpose($a))))",
    "solve_triangular(cholesky($a @ transpose($a) + identity($s)), $b)", "($a + lower($b))",
    "transpose(solve_transposed(cholesky($z @ transpose($z) + identity($z)), transpose($a)))",
    "($s @ row_ones($a) * $a)", "($a - row_ones($a) @ col_ones($b))", "(upper($a) * $n)",
    "($a + transpose(col_max_abs($s)))", '($a * rms($s, over="matrix"))',
    '($s @ $a / (1 + norm($s @ $a, over="matrix")))', '($a + mean($z, over="matrix"))',
)  # fmt: skip
CONDITIONS = ("($q and $p)", "($q or $p)", "(not $q)", "(not (not $q or $p))", "(not ($q and $p))")
COMPARISONS = (
    "$n < $u", "$n > $u", "$n >= $u", "$n <= $k", "$n != $u", "0.1 < $n < 2", "$n > $k",
    "not $n > $u",
)  # fmt: skip
MASKS = (
    "$a > $n", "$a <= $b", "$n < $a", "$a >= 0", "$a != 0", "$a == 0", "-0.5 < $a <= $n", "$a < $b",
)  # fmt: skip
MASKS_WITH_REDUCED_NUMBERS = ("$a > $l", "$l < 0.3", "abs($a) >= $l", "$l > $n")
JOINED_MASKS = (
    "($q and $m)", "($m or $q)", "(not ($m))", "($m and $o)", "(not ($q or $m))",
    "($q and not ($m))",
    "($m or $o)",
)  # fmt: skip
