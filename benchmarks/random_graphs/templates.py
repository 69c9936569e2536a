"""What a line of a program may be. `y` is the value it is about, `d` and `e` dimensions, `k` keepdim, `c` a correction."""

UNARY = (
    "torch.relu({y})", "torch.sigmoid({y})", "torch.tanh({y})", "F.gelu({y})", "F.gelu({y}, approximate='tanh')",
    "F.silu({y})", "F.mish({y})", "F.elu({y})", "F.leaky_relu({y}, 0.1)", "F.hardswish({y})", "F.hardsigmoid({y})",
    "F.softplus({y})", "F.relu6({y})", "-{y}", "{y}.abs()", "{y} * 0.5", "{y} + 1.5", "1.0 - {y}", "{y} / 3",
    "2.0 / ({y}.abs() + 1)", "{y}.square()", "{y}.clamp(-0.5, 0.75)", "{y}.clamp_min(0.1)", "torch.sin({y})",
    "torch.exp(-{y}.abs())", "({y}.abs() + 0.1).sqrt()", "({y}.abs() + 0.1).log()", "torch.log1p({y}.abs())",
    "torch.expm1({y}.clamp(max=3))", "torch.erf({y})", "({y}.abs() + 0.5).rsqrt()", "{y}.masked_fill({y} > 1, 0.25)",
    "torch.where({y} > 0, {y}, 0.1)", "({y} > 0).to({y}.dtype)", "{y} * ({y} > 0)", "{y}.sign()", "{y}.floor()",
    "{y}.round()", "{y} ** 2", "{y}.clone()", "torch.nan_to_num({y})", "{y}.isnan().to({y}.dtype)",
    "({y} == {y}).to({y}.dtype)", "{y}.cumsum(-1)", "F.dropout({y}, 0.3, False)", "F.threshold({y}, 0.2, -1.0)",
    "{y}.trunc()", "F.logsigmoid({y})", "F.softsign({y})", "{y}.atan()", "{y}.contiguous()",
    "{y}.logical_not().to({y}.dtype)", "{y}.reciprocal().clamp(-9, 9)", "F.tanhshrink({y})", "F.softshrink({y}, 0.2)",
    "{y}.cosh().clamp(max=50)", "{y}.fmod(1.5)", "F.selu({y})", "F.celu({y}, 0.7)", "F.hardtanh({y}, -0.3, 0.9)",
)  # fmt: skip
BINARY = (
    "{a} + {b}", "{a} * {b}", "{a} - {b}", "{b} - {a}", "torch.maximum({a}, {b})", "torch.minimum({a}, {b})",
    "{a} / ({b}.abs() + 0.5)", "torch.where({a} > {b}, {a}, {b})", "torch.add({a}, {b}, alpha=0.5)",
    "torch.sub({a}, {b}, alpha=2)", "torch.lerp({a}, {b}, 0.25)", "torch.addcmul({a}, {b}, {b}, value=0.5)",
    "{a} * torch.sigmoid({b})", "F.silu({a}) * {b}", "torch.hypot({a}, {b})", "({a} <= {b}).to({a}.dtype)",
    "torch.where({b} < 0, float('-inf'), {a})", "{a}.clamp(max={b})", "torch.atan2({a}, {b})", "torch.rsub({a}, {b})",
    "{a}.masked_fill({b} > 0.5, -1.0)", "torch.fmax({a}, {b})",
)  # fmt: skip
REDUCTIONS = (
    "{y}.sum({d}, keepdim={k})", "{y}.mean({d}, keepdim={k})", "{y}.amax({d}, keepdim={k})", "{y}.amin({d}, keepdim={k})",
    "{y}.var({d}, keepdim={k}, correction={c})", "{y}.std({d}, keepdim={k}, correction={c})",
    "torch.logsumexp({y}, {d}, keepdim={k})", "torch.max({y}, {d}, keepdim={k})[0]", "{y}.argmax({d}, keepdim={k})",
    "{y}.argmin({d}, keepdim={k})", "({y} > 0).any({d}, keepdim={k})", "({y} > 0).all({d}, keepdim={k})",
    "{y}.norm(dim={d}, keepdim={k})", "({y} > 0).sum({d}, keepdim={k})", "{y}.float().prod({d}, keepdim={k})",
    "{y}.count_nonzero({d})",
)  # fmt: skip
WHOLE = (
    "{y}.sum()", "{y}.mean()", "{y}.amax()", "{y}.argmax()", "torch.logsumexp({y}.flatten(), 0)", "{y}.max()", "{y}.var()",
)  # fmt: skip
NORMS = (
    "torch.softmax({y}, {d})", "torch.log_softmax({y}, {d})", "torch.softmax({y} * 0.5, {d})", "F.normalize({y}, dim={d})",
    "F.layer_norm({y}, {y}.shape[-1:])", "F.layer_norm({y}, {y}.shape[-1:], eps=1e-12)", "F.rms_norm({y}, {y}.shape[-1:])",
    "F.group_norm({y}, 2)", "F.group_norm({y}, {y}.shape[1])", "F.softmin({y}, {d})", "{y} - {y}.mean({d}, keepdim=True)",
    "{y} * torch.rsqrt({y}.square().mean({d}, keepdim=True) + 1e-6)",
    "{y} / {y}.abs().sum({d}, keepdim=True).clamp_min(0.1)", "F.batch_norm({y}, None, None, training=True)",
    "F.instance_norm({y}.unsqueeze(0)).squeeze(0)", "F.cosine_similarity({y}, {y}, {d})",
)  # fmt: skip
VIEWS = (
    "{y}.unflatten({d}, (-1, 2))", "{y}.unflatten({d}, (-1, 3))", "{y}.unflatten({d}, (2, -1))",
    "{y}.unflatten({d}, (-1, 4))", "{y}.flatten(0, 1)", "{y}.flatten(-2)", "{y}.flatten()", "{y}.transpose({d}, {e})",
    "{y}.transpose(-1, -2)", "{y}.mT", "{y}.unsqueeze({d})", "{y}.squeeze()", "{y}.squeeze({d})",
    "{y}.reshape({y}.shape[0], -1)", "{y}.reshape(-1, {y}.shape[-1])", "{y}.chunk(2, {d})[0]", "{y}.chunk(2, {d})[1]",
    "{y}[..., 1:]", "{y}[..., ::2]", "{y}[1:]", "{y}.select({d}, 0)", "{y}[:, -1]", "{y}.narrow({d}, 0, 2)",
    "{y}.unsqueeze(-1).expand(*{y}.shape, 3)", "{y}.unsqueeze(0).expand(2, *{y}.shape)", "{y}.flip({d})",
    "{y}.roll(1, {d})", "F.pad({y}, (1, 2))", "{y}.repeat_interleave(2, -1)", "torch.cat([{y}, {y}], {d})",
    "torch.stack([{y}, {y}])", "{y}.movedim({d}, 0)", "{y}.unbind({d})[0]", "{y}.diagonal()", "{y}.tril()", "{y}.T",
    "{y}.reshape({y}.shape)", "{y}.view_as({y})", "{y}.as_strided({y}.shape, {y}.stride())",
    "{y}.split([1, {y}.shape[-1] - 1], -1)[1]",
)  # fmt: skip
POOLS = (
    "F.avg_pool1d({y}.unsqueeze(1), 2).squeeze(1)", "F.max_pool1d({y}.unsqueeze(1), 2).squeeze(1)",
    "F.max_pool1d({y}.unsqueeze(1), 3, 2, padding=1, ceil_mode=True).squeeze(1)",
    "F.avg_pool1d({y}.unsqueeze(1), 3, 2, padding=1)",
    "F.avg_pool1d({y}.unsqueeze(1), 3, 2, ceil_mode=True, count_include_pad=False).squeeze(1)",
    "F.adaptive_avg_pool1d({y}.unsqueeze(1), 2)", "F.glu({y}, -1)", "{y}.topk(2, -1)[0]", "{y}.sort(-1)[0]",
    "F.one_hot({y}.argmax(-1), {y}.shape[-1]).to({y}.dtype)",
)  # fmt: skip
PAIRS = (
    "{y}.max({d}, keepdim={k})", "{y}.min({d}, keepdim={k})", "torch.var_mean({y}, {d}, keepdim={k})", "{y}.chunk(2, -1)",
    "{y}.split([1, {y}.shape[-1] - 1], -1)", "torch.std_mean({y}, {d}, keepdim={k})",
)  # fmt: skip
CASTS = (
    "cast({y}, torch.bfloat16)", "cast({y}, torch.float16)", "cast({y}, torch.float32)",
    "cast(cast({y}, torch.bfloat16), torch.float32)",
)  # fmt: skip
WRITES = (
    "{y}.add_(1.0)", "{y}.mul_(0.5)", "{y}.relu_()", "{y}[..., 0] = 1.0", "{y}[:, :1].mul_(2.0)", "{y}.zero_()",
    "{y}.clamp_(-1, 1)", "{y}.add_({b})", "{y}.mul_({b})", "{y}.copy_({b})", "{y}[1:].add_(0.5)", "{y}.t_().neg_().t_()",
    "{y}.masked_fill_({y} > 0.5, 0.0)",
)  # fmt: skip
PRODUCTS_2D = (
    "{x} @ {w}", "F.linear({x}, {wt}, {bias})", "F.linear({x}, {wt})", "torch.addmm({bias}, {x}, {w})",
    "torch.mm({x}, {w})", "torch.addmm({full}, {x}, {w}, beta=0.5, alpha=2.0)",
    "torch.addmm({bias}, {x}, {w}, beta=0, alpha=-1.0)", "torch.einsum('mk,kn->mn', {x}, {w})", "({wt} @ {x}.t()).t()",
    "{wt} @ {x}.t()", "{x} @ {w} * 0.5 + {x} @ {w}", "torch.addmm({column}, {x}, {w})", "{x} @ {w} + {bias}",
    "torch.add({full}, {x} @ {w}, alpha=3.0)", "{x}.t() @ {full}",
)  # fmt: skip
PRODUCTS_3D = (
    "F.linear({x}, {wt}, {bias})", "{x} @ {w}", "{x} @ {batch}", "torch.bmm({x}, {batch})",
    "torch.baddbmm({bias}, {x}, {batch})", "torch.baddbmm({bias}, {x}, {batch}, beta=0.5, alpha=2.0)",
    "torch.einsum('bmk,kn->bmn', {x}, {w})", "{x} @ {x}.transpose(1, 2)",
    "torch.softmax({x} @ {x}.transpose(1, 2) * 0.3, -1) @ {x}", "torch.einsum('bmk,bkn->mbn', {x}, {batch})",
)  # fmt: skip
