# What it costs the rest of a machine to make and to unmake one more partition beside n others. Emulated times say nothing
# absolute: only the ratios do, to n = 1, and to the same spinning thread in a quiet time of the same length. Nothing is
# judged by its time; what is checked is that every partition is in force, and that all CPUs come back.
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
# How often one partition more is made and unmade in one window.
TIMES = 4
COUNTS = (1, 2, 4, 8, 16, 32, 64)
CPUS = sorted(os.sched_getaffinity(0))
# The spinning thread has one shared CPU, this one another; both are left to them by everything here.
SPINS, MAKES = CPUS[0], CPUS[1]
# One CPU for each partition, from the highest down, and at least one more that is shared.
COUNTS = [count for count in COUNTS if count + 1 <= len(CPUS) - 3]
clock = time.monotonic_ns


def have(path, name):
    with open(f"{ROOT}/{path}/{name}") as file:
        return file.read().strip()


def put(path, name, value):
    # Unbuffered: one write is one system call, as the agent's are.
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
    """A process that does nothing but read the clock, and tells the longest time between two readings."""

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
        """Begins a window; the longest gap of the one before."""
        self.window += 1
        struct.pack_into("q", self.shared, 0, self.window)
        while struct.unpack_from("q", self.shared, 16)[0] != self.window:
            pass
        return struct.unpack_from("q", self.shared, 8)[0]

    def during(self, work):
        """How long the work took, and the longest gap meanwhile."""
        self.turn()
        start = clock()
        work()
        took = clock() - start
        return took, self.turn()


class Pods:
    """Pods of one container each, and the writes that give a container one CPU and take it away."""

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
            sys.exit(f"FAILED: {pod}, which should {'' if live else 'not '}be a partition: {state}: {cpus}")
        shared = spread(have("", "cpuset.cpus.effective"))
        if shared != set(CPUS) - self.held:
            sys.exit(f"FAILED: shared CPUs should be all but {listed(self.held)}, are {listed(shared)}")


def quiet(length):
    """As busy as one that writes, for as long, and without a write."""
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

        # Once before it counts: what runs for the first time is translated first.
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

print(f"{len(CPUS)} CPUs. Emulated: only ratios mean something, and gaps below a slice of the host's scheduler mean nothing.")
print(f"Medians of {WINDOWS * TIMES} times, and of the longest gap in {WINDOWS} windows of {TIMES} times each.")
print("Each partition has one CPU, so that with more of them the scheduling domain of those that share is smaller.")
print("partitions  shared CPUs  time, n=1 is 1    longest gap, n=1 is 1  longest gap, quiet is 1")
print("                           make    unmake")
first = rows[0]
for count, shared, make, unmake, gap, calm in rows:
    ratios = make / first[2], unmake / first[3], gap / first[4], gap / calm
    print("{:>10}  {:>11}  {:>6.2f}  {:>8.2f}  {:>21.2f}  {:>23.2f}".format(count, shared, *ratios))
PY
fact "CPUs of everyone at the end" "$online" "$(everyone)"
fact "CPUs that nobody has" "" "$(lost)"
settle
