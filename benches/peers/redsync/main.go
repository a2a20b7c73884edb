// The driver of redsync, on go-redis. The commands are those of ../driver.rs.
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	goredislib "github.com/redis/go-redis/v9"
	"golang.org/x/sys/unix"
)

// How many goroutines take the locks that are held at rest.
const taking = 64

// How long those locks are held: nothing renews them.
const rest = 10 * time.Minute

var nothing = map[string]any{}

type driver struct {
	sync *redsync.Redsync
	// Locks that a command has named, for the next commands.
	locks map[string]*redsync.Mutex
	kept  []*redsync.Mutex
}

func main() {
	workers, err := strconv.Atoi(os.Args[len(os.Args)-2])
	if err != nil {
		fatal(err)
	}
	runtime.GOMAXPROCS(workers)
	options, err := goredislib.ParseURL(os.Getenv("REDIS_URL"))
	if err != nil {
		fatal(err)
	}
	pool := goredis.NewPool(goredislib.NewClient(options))
	driver := driver{sync: redsync.New(pool), locks: map[string]*redsync.Mutex{}}
	input := bufio.NewScanner(os.Stdin)
	output := json.NewEncoder(os.Stdout)
	for input.Scan() {
		answer, err := driver.answer(strings.Fields(input.Text()))
		if err != nil {
			answer = map[string]any{"error": err.Error()}
		}
		if err := output.Encode(answer); err != nil {
			fatal(err)
		}
	}
}

func fatal(err error) {
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

func now() int64 {
	var time unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &time); err != nil {
		fatal(err)
	}
	return time.Nano()
}

func (d *driver) answer(words []string) (map[string]any, error) {
	var numbers []int64
	for _, word := range words {
		// An argument that is not a number is not used as one.
		number, _ := strconv.ParseInt(word, 10, 64)
		numbers = append(numbers, number)
	}
	switch {
	case len(words) == 1 && words[0] == "hello":
		return hello(), nil
	case len(words) == 2 && words[0] == "pair":
		return d.pairs(int(numbers[1]))
	case len(words) == 5 && words[0] == "load":
		return d.load(words[1], int(numbers[2]), numbers[3], numbers[3]+numbers[4]*1_000_000), nil
	case len(words) == 2 && words[0] == "hold":
		return nothing, acquire(d.lock(words[1]))
	case len(words) == 2 && words[0] == "wait":
		err := acquire(d.lock(words[1]))
		return map[string]any{"at": now()}, err
	case len(words) == 2 && words[0] == "free":
		lock, at := d.lock(words[1]), now()
		return map[string]any{"at": at}, release(lock)
	case len(words) == 2 && words[0] == "take":
		return d.take(int(numbers[1]))
	case len(words) == 1 && words[0] == "leave":
		return d.leave(), nil
	}
	return nil, fmt.Errorf("knows no `%s`", strings.Join(words, " "))
}

func hello() map[string]any {
	versions := [][]string{}
	for _, name := range []string{"github.com/go-redsync/redsync/v4", "github.com/redis/go-redis/v9"} {
		versions = append(versions, []string{strings.Split(name, "/")[2], version(name)})
	}
	versions = append(versions, []string{"Go", strings.TrimPrefix(runtime.Version(), "go")})
	sends := []string{"set", "evalsha", "eval"}
	return map[string]any{
		"name": "redsync", "versions": versions, "sends": sends, "nests": false, "renews": false, "waits": true,
	}
}

func version(module string) string {
	info, _ := debug.ReadBuildInfo()
	for _, dependency := range info.Deps {
		if dependency.Path == module {
			return strings.TrimPrefix(dependency.Version, "v")
		}
	}
	return "unknown"
}

func (d *driver) lock(name string) *redsync.Mutex {
	if d.locks[name] == nil {
		d.locks[name] = d.sync.NewMutex(name)
	}
	return d.locks[name]
}

// Calls Lock again after its 32 tries, as often as it takes.
func acquire(lock *redsync.Mutex) error {
	for {
		err := lock.Lock()
		var taken *redsync.ErrTaken
		if err == nil || !(errors.As(err, &taken) || errors.Is(err, redsync.ErrFailed)) {
			return err
		}
	}
}

func release(lock *redsync.Mutex) error {
	held, err := lock.Unlock()
	if err == nil && !held {
		err = errors.New("it was not held")
	}
	return err
}

func (d *driver) pairs(count int) (map[string]any, error) {
	lock := d.lock(fmt.Sprintf("peers:free:%d", os.Getpid()))
	nanos := make([]int64, count)
	for at := range nanos {
		began := now()
		if err := acquire(lock); err != nil {
			return nil, err
		}
		if err := release(lock); err != nil {
			return nil, err
		}
		nanos[at] = now() - began
	}
	return map[string]any{"nanos": nanos}, nil
}

func (d *driver) load(name string, tasks int, start, end int64) map[string]any {
	grants, late := make([]int64, tasks), make([]int64, tasks)
	longest, errors := make([]int64, tasks), make([]int64, tasks)
	var running sync.WaitGroup
	for at := range tasks {
		running.Go(func() {
			own := name
			if name == "-" {
				own = fmt.Sprintf("peers:own:%d:%d", os.Getpid(), at)
			}
			lock := d.sync.NewMutex(own)
			time.Sleep(time.Duration(start - now()))
			for {
				asked := now()
				if asked >= end {
					return
				}
				err := acquire(lock)
				granted := now()
				longest[at] = max(longest[at], min(granted, end)-asked)
				if err != nil {
					errors[at]++
					continue
				}
				if granted < end {
					grants[at]++
				} else {
					late[at]++
				}
				if release(lock) != nil {
					errors[at]++
				}
			}
		})
	}
	running.Wait()
	most, failed, after := int64(0), int64(0), int64(0)
	for at := range tasks {
		most, failed, after = max(most, longest[at]), failed+errors[at], after+late[at]
	}
	return map[string]any{"grants": grants, "late": after, "longest": most, "errors": failed}
}

// Each of the goroutines does the same with every 64th.
func parts(count int, work func(at int) error) []error {
	failures := make([]error, taking)
	var running sync.WaitGroup
	for first := range taking {
		running.Go(func() {
			for at := first; at < count; at += taking {
				failures[first] = errors.Join(failures[first], work(at))
			}
		})
	}
	running.Wait()
	return failures
}

func (d *driver) take(count int) (map[string]any, error) {
	before := live()
	d.kept = make([]*redsync.Mutex, count)
	failures := parts(count, func(at int) error {
		d.kept[at] = d.sync.NewMutex(fmt.Sprintf("peers:kept:%d", at), redsync.WithExpiry(rest))
		return acquire(d.kept[at])
	})
	return map[string]any{"live": live() - before}, errors.Join(failures...)
}

func (d *driver) leave() map[string]any {
	failed := 0
	var counting sync.Mutex
	parts(len(d.kept), func(at int) error {
		if release(d.kept[at]) != nil {
			counting.Lock()
			failed++
			counting.Unlock()
		}
		return nil
	})
	d.kept = nil
	return map[string]any{"errors": failed}
}

// Returns the memory that is in use after a collection.
func live() int64 {
	runtime.GC()
	var memory runtime.MemStats
	runtime.ReadMemStats(&memory)
	return int64(memory.HeapAlloc + memory.StackInuse)
}
