-- wrk posts bodies made beforehand in turn: wrk ... -s wrk.lua URL -- CONTENT_TYPE BODY_FILE...
-- What done() prints is the last line of the output, for benchmarks/ours.py.
local requests, turn = {}, 0

function init(args)
   local headers = { ["Content-Type"] = args[1] }
   for i = 2, #args do
      local file = assert(io.open(args[i], "rb"))
      requests[#requests + 1] = wrk.format("POST", nil, headers, file:read("*a"))
      file:close()
   end
end

function request()
   turn = turn % #requests + 1
   return requests[turn]
end

function done(summary, latency)
   local errors = summary.errors
   io.write(string.format(
      '{"requests": %d, "seconds": %f, "p50_ms": %f, "p99_ms": %f, "p999_ms": %f, "refused": %d, "broken": %d}\n',
      summary.requests, summary.duration / 1e6, latency:percentile(50) / 1e3, latency:percentile(99) / 1e3,
      latency:percentile(99.9) / 1e3, errors.status, errors.connect + errors.read + errors.write + errors.timeout))
end
