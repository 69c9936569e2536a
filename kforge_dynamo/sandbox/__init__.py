"""Is a candidate right, and how fast is it? Asked by `worker.Worker` in the user's process, answered by a program of its own.

The way of a request: `worker` (parent) -> `jobs` (child) -> `evaluation`: memory, discrimination, build, verify, race.

- `inputs`, `domains`, `layout`: values of every class, inside the domain their uses imply, in memory with guards;
- `precision`, `rows`, `noise`, `oracle`, `limits`: the truth, the error e0 of eager's own arithmetic, and how steady it is;
- `gate`, `verify`: outputs against the truth, row by row and column by column; determinism, inputs and guards;
- `dissect`, `discrimination`: mutants, and which classes of inputs prove anything;
- `baseline`, `timing`, `race`: Inductor's version, interleaved samples, refusals;
- `plans`, `watch`, `trap`, `downcast`: plans that are none; threads, torch's operations and lasting memory of a launch; and the
  number format that explains a wrong result;
- `bench`, `memory`, `points`, `threads`: what is kept about a task, what fits, which sizes of a domain are checked;
- `profile`: what a kernel that passed does with its device.

**Covered**: a crash, a hang, an exit, a flood of output and a lost device end the worker's process group and become a
verdict; the worker ends with its parent, however that ends. A candidate sees no reference, no seed and no earlier output in
the memory it is given; its outputs start as NaN and then as another pattern; what it may not touch is compared byte by byte;
outputs of timed calls are compared as well, and addresses that were timed once more with other values. Each rule is a switch of
`records.guardrail.Guards`, and `tests/sandbox/adversarial` shows what it alone catches.

**Not covered yet**: the candidate shares an address space with the oracle and the clock, so code that goes looking for them
can find them; it may use the network, the disk and as much memory as the user may; a process that leaves the group survives.
A kernel that recognises its inputs by all of their bits and keeps results in its plan's buffers is right, and is timed as fast
as it then is. Results that need more bytes than are free are not searched.
"""
