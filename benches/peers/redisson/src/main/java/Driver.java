import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Queue;
import java.util.concurrent.Callable;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.stream.Collectors;
import java.util.stream.Stream;
import org.redisson.Redisson;
import org.redisson.api.RLock;
import org.redisson.api.RedissonClient;
import org.redisson.config.Config;

/** The driver of Redisson. The commands are those of driver.rs, two folders up; a task is a thread. */
public final class Driver {
    /** How many threads take the locks that are held at rest. */
    private static final int TAKING = 64;

    private static final int DEPTH = 3;

    private final RedissonClient redisson;

    /** A thread is an owner, and the time of one that has ended is in no statistics: they stay. */
    private final ExecutorService threads = Executors.newCachedThreadPool();

    /** Of those by which a hold turned out to be lost. */
    private volatile RuntimeException last;

    private CountDownLatch leaving = new CountDownLatch(0);
    private List<Future<Long>> kept = List.of();

    private Driver(RedissonClient redisson) {
        this.redisson = redisson;
    }

    public static void main(String[] arguments) throws Exception {
        long lease = Long.parseLong(arguments[arguments.length - 1]);
        Config config = new Config();
        // The default is 30 s, like that of the other libraries here.
        config.setLockWatchdogTimeout(lease);
        config.useSingleServer().setAddress(System.getenv("REDIS_URL"));
        Driver driver = new Driver(Redisson.create(config));
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            String answer;
            try {
                answer = driver.answer(line.trim().split(" +"));
            } catch (Exception error) {
                answer = "{\"error\": \"" + error.toString().replaceAll("[\"\\\\\\p{Cntrl}]", " ") + "\"}";
            }
            System.out.println(answer);
        }
        Runtime.getRuntime().halt(0);
    }

    private String answer(String[] words) throws Exception {
        switch (words[0]) {
            case "hello":
                return hello();
            case "pair":
                return pairs(1, Integer.parseInt(words[1]));
            case "nested":
                return pairs(DEPTH, Integer.parseInt(words[1]));
            case "load":
                long start = Long.parseLong(words[3]);
                long end = start + Long.parseLong(words[4]) * 1_000_000;
                return load(words[1], Integer.parseInt(words[2]), start, end);
            case "hold":
                redisson.getLock(words[1]).lock();
                return "{}";
            case "wait":
                redisson.getLock(words[1]).lock();
                return "{\"at\": " + System.nanoTime() + "}";
            case "free":
                RLock lock = redisson.getLock(words[1]);
                long at = System.nanoTime();
                lock.unlock();
                return "{\"at\": " + at + "}";
            case "take":
                return take(Integer.parseInt(words[1]));
            case "leave":
                return leave();
            default:
                throw new IllegalArgumentException("knows no " + String.join(" ", words));
        }
    }

    private static String hello() {
        Map<String, String> versions = new HashMap<>();
        versions.put("Redisson", Redisson.class.getPackage().getImplementationVersion());
        versions.put("Java", System.getProperty("java.vm.name") + " " + System.getProperty("java.version"));
        String list = versions.entrySet().stream()
                .map(version -> "[\"" + version.getKey() + "\", \"" + version.getValue() + "\"]")
                .collect(Collectors.joining(", "));
        // Redisson sends a DEL after each release. The scripts delete too, but only the script of a release sets a key.
        String sends = Stream.of("evalsha", "eval", "subscribe", "unsubscribe", "ping", "wait", "script|load", "set")
                .map(name -> "\"" + name + "\"")
                .collect(Collectors.joining(", "));
        return "{\"name\": \"Redisson\", \"versions\": [" + list + "], \"sends\": [" + sends + "], "
                + "\"nests\": true, \"renews\": true, \"waits\": true}";
    }

    private String pairs(int depth, int count) {
        RLock lock = redisson.getLock("peers:free:" + ProcessHandle.current().pid());
        List<Long> nanos = new ArrayList<>(count);
        for (int at = 0; at < count; at++) {
            long began = System.nanoTime();
            for (int level = 0; level < depth; level++) {
                lock.lock();
            }
            for (int level = 0; level < depth; level++) {
                lock.unlock();
            }
            nanos.add(System.nanoTime() - began);
        }
        return "{\"nanos\": " + nanos + "}";
    }

    private record Seen(long grants, long late, long longest, long errors) {}

    private String load(String name, int tasks, long start, long end) throws Exception {
        List<Future<Seen>> running = new ArrayList<>();
        for (int at = 0; at < tasks; at++) {
            String own = name.equals("-") ? "peers:own:" + ProcessHandle.current().pid() + ":" + at : name;
            Callable<Seen> task = () -> seen(redisson.getLock(own), start, end);
            running.add(threads.submit(task));
        }
        List<Long> grants = new ArrayList<>();
        long late = 0;
        long longest = 0;
        long errors = 0;
        for (Future<Seen> task : running) {
            Seen seen = task.get();
            grants.add(seen.grants);
            late += seen.late;
            longest = Math.max(longest, seen.longest);
            errors += seen.errors;
        }
        return "{\"grants\": " + grants + ", \"late\": " + late
                + ", \"longest\": " + longest + ", \"errors\": " + errors + "}";
    }

    private static Seen seen(RLock lock, long start, long end) throws InterruptedException {
        long before = Math.max(start - System.nanoTime(), 0);
        Thread.sleep(before / 1_000_000, (int) (before % 1_000_000));
        long grants = 0;
        long late = 0;
        long longest = 0;
        long errors = 0;
        while (true) {
            long asked = System.nanoTime();
            if (asked >= end) {
                return new Seen(grants, late, longest, errors);
            }
            boolean acquired = false;
            try {
                lock.lock();
                acquired = true;
            } catch (RuntimeException error) {
                errors++;
            }
            long granted = System.nanoTime();
            longest = Math.max(longest, Math.min(granted, end) - asked);
            if (!acquired) {
                continue;
            }
            if (granted < end) {
                grants++;
            } else {
                late++;
            }
            try {
                lock.unlock();
            } catch (RuntimeException error) {
                errors++;
            }
        }
    }

    private String take(int count) throws Exception {
        long before = live();
        CountDownLatch taken = new CountDownLatch(TAKING);
        Queue<RuntimeException> failures = new ConcurrentLinkedQueue<>();
        leaving = new CountDownLatch(1);
        kept = new ArrayList<>();
        for (int at = 0; at < TAKING; at++) {
            int first = at;
            Callable<Long> task = () -> keep(first, count, taken, failures);
            kept.add(threads.submit(task));
        }
        taken.await();
        if (!failures.isEmpty()) {
            throw failures.remove();
        }
        return "{\"live\": " + (live() - before) + "}";
    }

    /** A lock is released by the thread that took it. */
    private long keep(int first, int count, CountDownLatch taken, Queue<RuntimeException> failures)
            throws InterruptedException {
        List<RLock> locks = new ArrayList<>();
        try {
            for (int at = first; at < count; at += TAKING) {
                RLock lock = redisson.getLock("peers:kept:" + at);
                lock.lock();
                locks.add(lock);
            }
        } catch (RuntimeException error) {
            failures.add(error);
        } finally {
            taken.countDown();
        }
        leaving.await();
        long errors = 0;
        for (RLock lock : locks) {
            try {
                lock.unlock();
            } catch (RuntimeException error) {
                errors++;
                last = error;
            }
        }
        return errors;
    }

    private String leave() throws Exception {
        leaving.countDown();
        long errors = 0;
        for (Future<Long> part : kept) {
            errors += part.get();
        }
        kept = List.of();
        if (errors > 0) {
            System.err.println(errors + " holds of Redisson were lost: " + last);
        }
        return "{\"errors\": " + errors + "}";
    }

    /** The memory that is in use after a collection. */
    private static long live() {
        System.gc();
        Runtime runtime = Runtime.getRuntime();
        return runtime.totalMemory() - runtime.freeMemory();
    }
}
