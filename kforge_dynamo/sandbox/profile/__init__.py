"""What a kernel does with its device: `attach` gives a trial that passed its `Profile`.

- `roofline`, `occupancy`: least work beside ceilings; blocks that fit on a multiprocessor. Always there, from numbers alone;
- `instruments`: the table of what a request may ask for by name;
- `torch_profiler`, `ncu`, `nsys`, `perf`: the command of each and the parser of what it leaves;
- `driver`, `external`: one candidate as a program of its own, for tools that must start what they watch;
- `pictures`: screenshots for a model that can see.

What a language's compiler says is read in `languages` (`base.Describing`). A tool that is missing, forbidden or broken is a
note in the profile, never a verdict.
"""
