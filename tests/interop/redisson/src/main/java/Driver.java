import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import org.redisson.Redisson;
import org.redisson.api.RFencedLock;
import org.redisson.api.RLock;
import org.redisson.api.RedissonClient;
import org.redisson.config.Config;

/**
 * Does with Redisson's locks what its input says: a line is a number, the name of a thread, a command and the name of a lock.
 * The answer is a line with the same number. A thread is an owner, and does one command after the other.
 */
public final class Driver {
    private static final Map<String, ExecutorService> THREADS = new ConcurrentHashMap<>();

    public static void main(String[] nodes) throws Exception {
        Config config = new Config();
        config.setLockWatchdogTimeout(Long.parseLong(System.getenv("WATCHDOG_MS")));
        if (nodes.length == 1) {
            config.useSingleServer().setAddress(nodes[0]);
        } else {
            config.useClusterServers().addNodeAddress(nodes);
        }
        RedissonClient redisson = Redisson.create(config);
        say("ready");
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            String[] words = line.trim().split(" +");
            THREADS.computeIfAbsent(words[1], name -> Executors.newSingleThreadExecutor())
                    .execute(() -> say(words[0] + " " + answer(redisson, words[2], words[3])));
        }
        Runtime.getRuntime().halt(0);
    }

    private static synchronized void say(String line) {
        System.out.println(line);
        System.out.flush();
    }

    /** Of the names before and behind a plus sign, in this order. */
    private static RLock both(RedissonClient redisson, String names) {
        String[] each = names.split("[+]");
        return redisson.getMultiLock(redisson.getLock(each[0]), redisson.getLock(each[1]));
    }

    private static String answer(RedissonClient redisson, String command, String name) {
        try {
            RLock lock = redisson.getLock(name);
            RFencedLock fenced = redisson.getFencedLock(name);
            switch (command) {
                case "lock":
                    lock.lock();
                    return "done";
                case "try":
                    return String.valueOf(lock.tryLock());
                case "unlock":
                    lock.unlock();
                    return "done";
                case "tryboth":
                    return String.valueOf(both(redisson, name).tryLock());
                case "unlockboth":
                    both(redisson, name).unlock();
                    return "done";
                case "force":
                    return String.valueOf(lock.forceUnlock());
                case "count":
                    return String.valueOf(lock.getHoldCount());
                case "locked":
                    return String.valueOf(lock.isLocked());
                case "token":
                    return String.valueOf(fenced.lockAndGetToken());
                case "untoken":
                    fenced.unlock();
                    return "done";
                default:
                    return "knows no " + command;
            }
        } catch (Exception error) {
            return error.getClass().getSimpleName();
        }
    }
}
