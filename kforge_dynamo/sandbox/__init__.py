"""Is a candidate right, and how fast is it? Asked by `worker.Worker` in the user's process, answered by a program of its own.

The way of a request: `worker` (parent) -> `jobs` (program) -> `judge` -> `evaluation`: memory, discrimination, build, verify,
race. On a CPU the candidate is built and run by `runner`, a process of its own that `forks` makes in milliseconds; `venue` has
both ways.

- `inputs`, `domains`, `layout`: values of every class, inside the domain their uses imply, in memory with guards;
- `precision`, `rows`, `noise`, `oracle`, `limits`: the truth, the error e0 of eager's own arithmetic, and how steady it is;
- `gate`, `verify`: outputs against the truth, row by row and column by column; determinism, inputs and guards;
- `dissect`, `discrimination`: mutants, and which classes of inputs prove anything;
- `baseline`, `rival`, `timing`, `race`: Inductor's version, interleaved samples, refusals;
- `remote`, `arena`, `pipes`: how the judge talks to a runner, and checks what it says;
- `kernel`, `confine`: what each process may do, by Linux's own means;
- `plans`, `watch`, `trap`, `downcast`: plans that are none; threads, torch's operations and lasting memory of a launch; and the
  number format that explains a wrong result;
- `bench`, `memory`, `points`, `threads`: what is kept about a task, what fits, which sizes of a domain are checked;
- `profile`: what a kernel that passed does with its device.

**Covered everywhere**: a crash, a hang, an exit, a flood of output and a lost device end a process and become a verdict; the
worker ends with its parent, however that ends. A candidate sees no reference, no seed and no earlier output in the memory it
is given; its outputs start as NaN and then as another pattern; what it may not touch is compared byte by byte; outputs of
timed calls are compared as well, and addresses that were timed once more with other values. Each rule is a switch of
`records.guardrail.Guards`, and `tests/sandbox/adversarial` shows what it alone catches. The environment is a list of allowed
names. No network, no writes but to the temporary folder and the caches of compilers.

**Covered on a CPU under Linux besides**: the candidate's process holds neither truths nor seeds nor the judge's memory; it
cannot start programs or processes, open sockets, signal others, write a file, read beyond the system's and Python's folders,
or use more memory, time and descriptors than its task needs; what it leaves behind is found and killed. Its clock is compared
with the judge's. A layer that the system lacks is left out, and `kforge doctor` says so.

**Not covered**: on a GPU, and on other systems than Linux, the candidate shares an address space with the oracle and the
clock, so code that goes looking for them can find them. On a CPU it shares one with Inductor's version while both are timed:
it can slow that down. Reading the time, the processor's caches as a channel, faults of the kernel itself, and a compiler that
is made to crash on purpose (it runs without network and writes only to the artifact folder) are not kept out. Threads of a
candidate count against its memory, not by number. A kernel that
recognises its inputs by all of their bits and keeps results in its plan's buffers is right, and is timed as fast as it then
is. Results that need more bytes than are free are not searched.
"""
