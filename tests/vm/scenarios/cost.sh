# Measures how the creation and the removal of one more partition beside n partitions slow down the rest of the machine.
# Absolute times under emulation have no meaning. The scenario prints ratios to n = 1, and ratios to an idle period of the same
# length. The scenario checks no time. It checks that every partition is valid and that all CPUs come back.
# vm: wide asked
source tests/vm/check.sh
source tests/vm/cpuset.sh
since 6.7 || not_here "Linux $(uname -r) has no remote partitions"
command -v python3 >/dev/null || fail "python3 is needed"

finish() {
    local file
    for file in "$cgroups"/kubepods/*/*/cpuset.cpus.partition; do
        [[ ! -e $file ]] || echo member >"$file" || true
    done
    for file in "$cgroups"/kubepods/*/*/cgroup.kill; do
        [[ ! -e $file ]] || echo 1 >"$file" || true
    done
    sleep 0.5
    clear_cgroups kubepods
}
trap finish EXIT

echo "+cpuset" >"$cgroups/cgroup.subtree_control"
parent kubepods
python3 - "$cgroups" "${PINFOLD_VM_COST_WINDOWS:-5}" <<'PY'
import mmap, os, signal, statistics, struct, sys, time

ROOT, WINDOWS = sys.argv[1], int(sys.argv[2])
# How often a window makes and removes the additional partition.
TIMES = 4
COUNTS = (1, 2, 4, 8, 16, 32, 64)
CPUS = sorted(os.sched_getaffinity(0))
# The spinner's CPU, and this process's CPU. No partition gets these CPUs.
SPINS, MAKES = CPUS[0], CPUS[1]
# Each partition has one CPU. Besides the spinner's CPU and this process's CPU, at least one further CPU stays shared.
COUNTS = [count for count in COUNTS if count + 1 <= len(CPUS) - 3]
clock = time.monotonic_ns


def have(path, name):
    with open(f"{ROOT}/{path}/{name}") as file:
        return file.read().strip()


def put(path, name, value):
    # One write is one system call, as in the agent.
    file = os.open(f"{ROOT}/{path}/{name}", os.O_WRONLY)
    try:
        os.write(file, f"{value}\n".encode())
    finally:
        os.close(file)


def listed(cpus):
    return ",".join(str(cpu) for cpu in sorted(cpus))


def spread(text):
    cpus = set()
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        cpus.update(range(int(first), int(last or first) + 1))
    return cpus


class Spinner:
    """A process that reads the clock all the time, and reports the longest gap between two readings."""

    def __init__(self):
        self.shared = mmap.mmap(-1, 24)
        self.window = 0
        self.process = os.fork()
        if self.process == 0:
            os.sched_setaffinity(0, {SPINS})
            self.spin()

    def spin(self):
        seen, longest, last = 0, 0, clock()
        view = memoryview(self.shared).cast("q")
        while True:
            now = clock()
            if now - last > longest:
                longest = now - last
            last = now
            if view[0] != seen:
                seen = view[0]
                view[1] = longest
                view[2] = seen
                longest, last = 0, clock()

    def turn(self):
        """Begins a window. Returns the longest gap of the previous window."""
        self.window += 1
        struct.pack_into("q", self.shared, 0, self.window)
        while struct.unpack_from("q", self.shared, 16)[0] != self.window:
            pass
        return struct.unpack_from("q", self.shared, 8)[0]

    def during(self, work):
        """Returns the duration of the work, and the longest gap during the work."""
        self.turn()
        start = clock()
        work()
        took = clock() - start
        return took, self.turn()


class Pods:
    """Pods with one container each. The methods write a container's partition of one CPU and remove the partition."""

    def __init__(self):
        self.held = set()

    def enter(self, cpu):
        pod = f"kubepods/pod{cpu}"
        os.mkdir(f"{ROOT}/{pod}")
        put(pod, "cgroup.subtree_control", "+cpuset")
        os.mkdir(f"{ROOT}/{pod}/main")
        process = os.fork()
        if process == 0:
            os.execvp("sleep", ["sleep", "100000"])
        put(f"{pod}/main", "cgroup.procs", process)

    def make(self, cpu):
        pod = f"kubepods/pod{cpu}"
        self.held.add(cpu)
        put("kubepods", "cpuset.cpus.exclusive", listed(self.held))
        put(pod, "cpuset.cpus.exclusive", cpu)
        put(f"{pod}/main", "cpuset.cpus.exclusive", cpu)
        put(f"{pod}/main", "cpuset.cpus.partition", "root")

    def unmake(self, cpu):
        pod = f"kubepods/pod{cpu}"
        self.held.discard(cpu)
        put(f"{pod}/main", "cpuset.cpus.partition", "member")
        put(f"{pod}/main", "cpuset.cpus.exclusive", "")
        put(pod, "cpuset.cpus.exclusive", "")
        put("kubepods", "cpuset.cpus.exclusive", listed(self.held))

    def check(self, cpu, live):
        pod = f"kubepods/pod{cpu}/main"
        state, cpus = have(pod, "cpuset.cpus.partition"), spread(have(pod, "cpuset.cpus.effective"))
        if (state == "root" and cpus == {cpu}) != live:
            sys.exit(f"FAILED: {pod} should {'' if live else 'not '}be a partition of CPU {cpu}: {state}: {cpus}")
        shared = spread(have("", "cpuset.cpus.effective"))
        if shared != set(CPUS) - self.held:
            sys.exit(f"FAILED: the shared CPUs should be all except {listed(self.held)}, but are {listed(shared)}")


def quiet(length):
    """Keeps this process busy for the given time without a write."""
    end = clock() + length
    while clock() < end:
        have("kubepods", "cgroup.procs")


os.sched_setaffinity(0, {MAKES})
pods, spinner = Pods(), Spinner()
free = sorted(CPUS[3:], reverse=True)
rows = []
try:
    for cpu in free[: COUNTS[-1] + 1]:
        pods.enter(cpu)
    for count in COUNTS:
        for cpu in free[len(pods.held) : count]:
            pods.make(cpu)
            pods.check(cpu, True)
        one = free[count]
        times, gaps, calms = {"make": [], "unmake": []}, [], []

        def change():
            for _ in range(TIMES):
                for name, work, live in (("make", pods.make, True), ("unmake", pods.unmake, False)):
                    start = clock()
                    work(one)
                    times[name].append(clock() - start)
                    pods.check(one, live)

        # The first round does not count, because the emulator translates new code in that round.
        change()
        for each in times.values():
            each.clear()
        for _ in range(WINDOWS):
            took, gap = spinner.during(change)
            gaps.append(gap)
            calms.append(spinner.during(lambda: quiet(took))[1])
        columns = (times["make"], times["unmake"], gaps, calms)
        rows.append((count, len(CPUS) - count, *map(statistics.median, columns)))
    for cpu in list(pods.held):
        pods.unmake(cpu)
        pods.check(cpu, False)
finally:
    os.kill(spinner.process, signal.SIGKILL)

print(f"{len(CPUS)} emulated CPUs. Only ratios have a meaning. Gaps below a time slice of the host's scheduler have no meaning.")
print(f"Medians of {WINDOWS * TIMES} repetitions, and of the longest gaps in {WINDOWS} windows of {TIMES} repetitions each.")
print("Each partition has one CPU, so more partitions leave a smaller scheduling domain for the shared CPUs.")
print("partitions  shared CPUs  time, n=1 is 1    longest gap, n=1 is 1  longest gap, quiet is 1")
print("                           make    unmake")
first = rows[0]
for count, shared, make, unmake, gap, calm in rows:
    ratios = make / first[2], unmake / first[3], gap / first[4], gap / calm
    print("{:>10}  {:>11}  {:>6.2f}  {:>8.2f}  {:>21.2f}  {:>23.2f}".format(count, shared, *ratios))
PY
fact "CPUs of the root cgroup and of this process at the end" "$online" "$(everyone)"
fact "lost CPUs" "" "$(lost)"
settle
